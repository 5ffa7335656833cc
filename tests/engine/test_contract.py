"""The contract: one global batch, the same run on any layout."""

import pytest

from tests.engine.runs import train

LAYOUTS = [(1, 4, 4), (1, 5, None), (2, 8, 1), (2, 4, 2), (3, 4, None), (4, 4, 1)]


@pytest.fixture(scope="module")
def reference(pool):
    return pool.run(train, 1, global_batch_size=16)[0]


@pytest.mark.parametrize(("ranks", "size", "accumulation"), LAYOUTS)
def test_layouts_give_the_same_run(pool, reference, ranks, size, accumulation):
    runs = pool.run(
        train,
        ranks,
        global_batch_size=16,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
    )
    for run in runs:
        assert len(run.losses) == 12  # 83 rows / 16 = 6 steps, twice
        assert run.distance(reference) < 1e-10
        assert run.losses == pytest.approx(reference.losses, rel=1e-6)  # summed in fp32 by the loop
        for ours, theirs in zip(run.logs, reference.logs, strict=True):
            for name in ("grad_norm", "learning_rate", "mean_token_accuracy", "num_tokens"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-6), name
