"""The contract: one global batch, the same run on any layout. The same table is printed by `make layouts`."""

import pytest

from tests.engine.runs import token_rows
from tests.layouts.matrix import CASES, GLOBAL_BATCH, LAYOUTS, ROWS, describe, reference, run_layout
from trl.layout.order import Order
from trl.layout.seeds import row_hash


@pytest.fixture(scope="module")
def references(pool):
    """One reference run a case, made when it is first asked for."""
    made = {}

    def get(case):
        if case.name not in made:
            made[case.name] = reference(pool, case)
        return made[case.name]

    return get


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        pytest.param(case, layout, id=f"{case.name} {describe(layout)}")
        for case in CASES
        for layout in case.layouts
        if layout != LAYOUTS[0]
    ],
)
def test_layouts_give_the_same_run(pool, references, case, layout):
    want = references(case)
    assert not want.weights.equal(want.start)
    for run in run_layout(pool, case, layout):
        assert run.distance(want) < case.tolerance
        assert run.losses == pytest.approx(want.losses, rel=1e-6 if "fp64" in case.name else 1e-5)
        assert [e["learning_rate"] for e in run.logs] == [e["learning_rate"] for e in want.logs]


def test_each_row_is_read_exactly_once_an_epoch(pool, tmp_path):
    """By the hashes of the rows that were collated, on every layout."""
    from trl.layout.records import read_steps

    order = Order(ROWS["n"], GLOBAL_BATCH, seed=3)
    whole = row_hash(range(ROWS["n"])) % 2**64
    for number, layout in enumerate([(1, 32, 1), (3, 4, None), (8, 4, 1)]):
        folder = tmp_path / str(number)
        case = CASES[0]
        options = {**case.options, "output_dir": str(folder)}
        run_layout(pool, type(case)(case.name, [], 0, options), layout)
        hashes = [int(step["rows"], 16) for step in read_steps(folder)]
        assert len(hashes) == 14
        for epoch in (0, 1):
            steps = hashes[7 * epoch : 7 * epoch + 7]
            assert sum(steps) % 2**64 == whole
            assert steps[6] == row_hash(order.step_rows(epoch, 6)) % 2**64


def test_the_rows_are_as_the_table_says():
    lengths = [len(ids) for ids in token_rows(**ROWS)["input_ids"]]
    assert len(lengths) == 203
    assert (min(lengths), max(lengths)) == (5, 200)
