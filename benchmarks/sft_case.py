"""One timed run of SFT, by whichever `trl` distribution the interpreter has. Started by `sft.py`.

    python sft_case.py JOB.json

JOB names a model folder, a file of rows, fields of SFTConfig, the number of steps and when the process was started
(seconds since the epoch). Only names that both distributions have are used, imported as a user's script would.
The last line is JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from datasets import load_dataset

from trl import SFTConfig, SFTTrainer

ends: list[tuple[float, float]] = []  # of each step: time of day, CPU seconds since the process started
tokens: list[int] = []  # of each microbatch


def cpu_seconds() -> float:
    """CPU time of this process since it started, and of the children it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Timed(SFTTrainer):
    """Counts tokens that are not padding, so that both sides are measured by one ruler."""

    def training_step(self, model, inputs, *args, **kwargs):
        tokens.append(int((inputs["input_ids"] != 0).sum()))
        return super().training_step(model, inputs, *args, **kwargs)

    def add_clock(self):
        from transformers import TrainerCallback

        class Clock(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                ends.append((time.time(), cpu_seconds()))

        self.add_callback(Clock())
        return self


def main(job: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            max_steps=job["steps"] + 1,
            gradient_accumulation_steps=1,
            learning_rate=1e-5,
            logging_steps=1000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
            train_sampling_strategy="sequential",
            **job["settings"],
        )
        rows = load_dataset("json", data_files=job["rows"], split="train")
        trainer = Timed(model=job["model"], args=config, train_dataset=rows).add_clock()
        trainer.train()
    first, last = ends[0], ends[-1]
    result = {
        "first_step_seconds": first[0] - job["began"],
        "first_step_cpu_seconds": first[1],
        "seconds": last[0] - first[0],
        "cpu_seconds": last[1] - first[1],
        "tokens": sum(tokens[1:]),
        "loss": trainer.state.log_history[-1]["train_loss"],
        "dtype": str(next(trainer.model.parameters()).dtype),
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
