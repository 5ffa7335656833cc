"""One timed run of SFT, by whichever `trl` distribution the interpreter has. Prints one line of JSON.

    python sft_case.py MODEL_FOLDER {padded,packed,long} STEPS

Only names that both distributions have are used. The model's weights are random: speed does not depend on them.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time

STARTED = time.perf_counter()

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402

from trl import SFTConfig, SFTTrainer  # noqa: E402


class Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.cpu: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())


def rows(kind: str, vocabulary: int, steps: int) -> Dataset:
    """Token rows with the lengths of chats: log-uniform from 30 to 500, or one long row a step."""
    rng = random.Random(0)
    count = {"padded": 8 * (steps + 1), "packed": 60 * (steps + 1), "long": steps + 1}[kind]
    lengths = [4096 if kind == "long" else int(30 * (500 / 30) ** rng.random()) for _ in range(count)]
    return Dataset.from_list([{"input_ids": [rng.randrange(10, vocabulary) for _ in range(n)]} for n in lengths])


def main(folder: str, kind: str, steps: int) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size={"padded": 8, "packed": 2, "long": 1}[kind],
        gradient_accumulation_steps=1,
        max_steps=steps + 1,
        max_length=4096 if kind == "long" else 1024,
        packing=kind == "packed",
        learning_rate=1e-5,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=False,
        use_cpu=True,
        seed=0,
    )
    clock = Clock()
    data = rows(kind, 380, steps)
    trainer = SFTTrainer(
        model=folder, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock]
    )
    trainer.train()
    # Tokens per step are counted from the data, so both sides are measured by the same ruler.
    tokens = sum(map(len, data["input_ids"])) / (steps + 1) if kind != "packed" else None
    print(
        json.dumps(
            {
                "first_step_s": clock.ends[0] - STARTED,
                "seconds": clock.ends[-1] - clock.ends[0],
                "cpu_seconds": clock.cpu[-1] - clock.cpu[0],
                "steps": steps,
                "tokens": tokens,
                "seen": getattr(trainer.state, "num_input_tokens_seen", 0),
                "loss": trainer.state.log_history[-1].get("train_loss"),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
