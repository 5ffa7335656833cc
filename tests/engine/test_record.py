"""What a run leaves for `trl diff`."""

import json
import random

from tests.engine.runs import ROWS, train
from trl.engine.record import RunRecord
from trl.layout.order import Order
from trl.layout.records import read_steps
from trl.layout.seeds import row_hash


def test_row_hashes_add_up_in_any_order():
    rows = list(range(100))
    random.Random(0).shuffle(rows)
    parts = [row_hash(rows[:30]), row_hash(rows[30:])]
    assert (sum(parts) - row_hash(range(100))) % 2**64 == 0
    assert row_hash([1, 2]) != row_hash([1, 3])
    assert row_hash([]) == 0
    assert row_hash([1, 1]) != row_hash([2, 2])


def test_the_rows_that_were_read_are_those_of_the_order(pool, tmp_path):
    """Hashed where rows are collated, on three ranks; compared with what the order says."""
    pool.run(train, 3, global_batch_size=16, output_dir=str(tmp_path))
    steps = read_steps(tmp_path)
    assert [s["step"] for s in steps] == list(range(1, 13))
    order = Order(ROWS, 16, seed=3)
    for i, step in enumerate(steps):
        epoch, k = divmod(i, 6)
        assert step["rows"] == f"{row_hash(order.step_rows(epoch, k)) % 2**64:016x}"
    assert {"loss", "grad_norm", "learning_rate", "epoch"} <= steps[0].keys()
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["layout"]["data_ranks"] == 3
    assert run["arguments"]["seed"] == 3


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path):
    first = RunRecord(tmp_path, {}, 0)
    for step in (1, 2, 3):
        first.add(step, {"loss": float(step)})
    first.add(3, {"loss": 99.0})  # the loop reports the last step of an epoch twice
    first.close()
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # cut off by a crash
    again = RunRecord(tmp_path, {}, 2)
    again.add(3, {"loss": 30.0})
    again.close()
    assert [(s["step"], s["loss"]) for s in read_steps(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
