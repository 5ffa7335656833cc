"""Preparing the data in a job of several processes."""

import json
import os
import time
from pathlib import Path

import pytest

from trl.errors import DataError


def train_slowly(model: str, cache: str, seconds: float, output: str):
    """Preparation takes `seconds` on the rank that does it; returns how many rows this rank prepared."""
    from datasets import Dataset

    from trl import SFTConfig, SFTTrainer

    os.environ["TRL_CACHE"] = cache
    rows = Dataset.from_list([{"number": i} for i in range(10)])

    def slow(row):
        time.sleep(seconds / 10)
        with open(f"{os.environ['TRL_CACHE']}/prepared-{os.environ['RANK']}", "a") as file:
            file.write("x")
        return f"the number {row['number']}"

    config = SFTConfig(
        output_dir=output, max_steps=1, global_batch_size=4, save_strategy="no", disable_tqdm=True, ddp_timeout=2
    )
    trainer = SFTTrainer(model, config, train_dataset=rows, formatting_func=slow)
    trainer.train()
    log = Path(cache) / f"prepared-{os.environ['RANK']}"
    return len(log.read_text()) if log.exists() else 0, trainer.state.log_history[0].get("train_loss")


def test_one_rank_prepares_for_longer_than_a_collective_may_wait(pool, tiny_folder, tmp_path):
    (tmp_path / "cache").mkdir()
    arguments = {"model": tiny_folder, "cache": str(tmp_path / "cache"), "output": str(tmp_path / "out")}
    started = time.monotonic()
    results = pool.run(train_slowly, 2, patience=2, seconds=5, **arguments)
    assert time.monotonic() - started > 5
    assert sorted(count for count, _ in results) == [0, 10]  # one rank did it all
    again = pool.run(train_slowly, 2, patience=2, seconds=5, **arguments)
    assert sorted(count for count, _ in again) == [0, 10]  # nothing was prepared again


def test_a_bad_row_names_its_file(tiny_folder, config, tmp_path):
    from trl import SFTTrainer
    from trl.data.sources import load_dataset_source

    file = tmp_path / "rows.jsonl"
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}
    file.write_text("\n".join(json.dumps(row) for row in [good, good, {"messages": []}]))
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2 .*messages"):
        SFTTrainer(tiny_folder, config(), train_dataset=load_dataset_source(str(file)))
    assert not list((tmp_path / "cache").rglob("*.arrow"))
