"""The contract under options and in the corners; the table of layouts is in tests/layouts."""

import pytest

from tests.engine.runs import train


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"loss_type": "dft"}, id="dft"),
        pytest.param({"train_sampling_strategy": "sequential"}, id="sequential"),
        pytest.param({"dataloader_num_workers": 1}, id="data workers"),
        pytest.param({"max_steps": 5, "num_train_epochs": 1}, id="max_steps"),
    ],
)
def test_options_do_not_break_it(pool, options):
    one = pool.run(train, 1, global_batch_size=16, **options)[0]
    three = pool.run(train, 3, global_batch_size=16, per_device_train_batch_size=2, **options)
    assert one.weights.equal(one.start) is False
    for run in three:
        assert run.distance(one) < 1e-10
        assert run.losses == pytest.approx(one.losses, rel=1e-6)


def test_dropout_is_the_same_for_layouts_with_the_same_per_device_size(pool):
    dropout = {"model": {"attention_dropout": 0.1}, "global_batch_size": 16, "per_device_train_batch_size": 4}
    one = pool.run(train, 1, **dropout)[0]
    without = pool.run(train, 1, global_batch_size=16, per_device_train_batch_size=4)[0]
    assert one.distance(without) > 1e-3  # dropout was on
    for ranks in (2, 4):
        for run in pool.run(train, ranks, **dropout):
            assert run.distance(one) < 1e-10


@pytest.mark.parametrize("rows", [1, 2, 7, 20])
def test_evaluation_counts_each_row_once_on_any_number_of_ranks(pool, rows):
    options = {"eval_rows": rows, "max_steps": 1, "per_device_eval_batch_size": 3, "global_batch_size": 4}
    one = pool.run(train, 1, **options)[0].evaluations[0]
    for ranks in (2, 3):
        for run in pool.run(train, ranks, **options):
            for name in ("eval_loss", "eval_mean_token_accuracy"):
                assert run.evaluations[0][name] == pytest.approx(one[name], rel=1e-12), name


def test_one_rank_without_a_supervised_token(pool):
    """Rows 5.. are unsupervised on one rank at some step; a whole unsupervised step changes nothing and is no NaN."""
    runs = pool.run(train_unsupervised, 2)
    for run in runs:
        assert run.losses == [0.0, 0.0]
        assert run.weights.equal(run.start)


def train_unsupervised():
    return train(rows={"n": 8, "supervised": False}, global_batch_size=8, weight_decay=0.0)


@pytest.mark.parametrize("ranks", [1, 3])
def test_resumed_on_another_layout(pool, tmp_path, ranks):
    """Stopped in the middle of the second epoch on two ranks, resumed on one and on three."""
    options = {"global_batch_size": 16, "optim": "adamw_torch", "learning_rate": 1e-3, "output_dir": str(tmp_path)}
    whole = pool.run(train, 2, **options)[0]
    pool.run(train, 2, **options, save_strategy="steps", save_steps=8)
    resumed = pool.run(train, ranks, **options, resume=str(tmp_path / "checkpoint-8"))[0]
    assert [entry["step"] for entry in resumed.logs][-4:] == [9, 10, 11, 12]
    assert resumed.losses[-4:] == pytest.approx(whole.losses[-4:], rel=1e-6)
    assert resumed.distance(whole) < 1e-8


def test_resuming_with_another_batch_is_refused(pool, tmp_path):
    options = {"global_batch_size": 16, "output_dir": str(tmp_path)}
    pool.run(train, 1, **options, save_strategy="steps", save_steps=8)
    with pytest.raises(AssertionError, match="global_batch_size was 16, is 32"):
        pool.run(train, 1, **{**options, "global_batch_size": 32}, resume=str(tmp_path / "checkpoint-8"))
