"""What a checkpoint records of the contract, and what must not have changed when it is resumed (rule 6).

The position itself is transformers': the number of the optimizer step. With the same G, seed and rows it says which
row comes next, on any layout.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from ..errors import ConfigError
from .config import TrainerConfig
from .loader import fingerprint_of, is_stream

CONTRACT_FILE = "contract.json"


def contract_of(args: TrainerConfig, rows: Any) -> dict[str, Any]:
    """What a resumed run must have in common with the one that saved."""
    return {
        "global_batch_size": args.plan.global_batch_size,
        "seed": args.order_seed,
        "rows": None if is_stream(rows) else len(rows),
        "data": fingerprint_of(rows),
        "train_sampling_strategy": args.train_sampling_strategy,
    }


def save_contract(folder: Path, args: TrainerConfig, rows: Any) -> None:
    (folder / CONTRACT_FILE).write_text(json.dumps(contract_of(args, rows), indent=1))


def check_contract(folder: Path, args: TrainerConfig, rows: Any) -> None:
    """Refuse to resume from another run. Checkpoints that record nothing are taken as they are.

    Raises:
        ConfigError: there is no such folder, or something changed: it says what.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no checkpoint at {folder}")
    file = folder / CONTRACT_FILE
    if not file.is_file():
        return
    saved, now = json.loads(file.read_text()), contract_of(args, rows)
    changed = [f"{k} was {saved.get(k)}, is {now[k]}" for k in now if saved.get(k) != now[k]]
    if changed:
        raise ConfigError(
            f"{folder} belongs to another run: " + "; ".join(changed),
            why="resuming would repeat some rows and leave out others",
            fix="resume with the same values, or start a new run from its weights by --model_name_or_path",
        )


def find_checkpoint(asked: str | bool | None, output_dir: str | None) -> str | None:
    """The folder to resume from: True (also as text, from a command line) means the newest complete one in
    `output_dir`."""
    if asked is None or asked is False or str(asked).lower() in ("false", ""):
        return None
    if asked is not True and str(asked).lower() != "true":
        return str(asked)
    found = sorted(Path(output_dir or ".").glob("checkpoint-*"), key=_step_of, reverse=True)
    complete = next((folder for folder in found if _is_complete(folder)), None)
    if complete is None:
        raise ConfigError(
            f"resume_from_checkpoint is set, but {output_dir} holds no complete checkpoint",
            why=f"incomplete: {', '.join(folder.name for folder in found)}" if found else "",
            fix="leave it out to start anew",
        )
    return str(complete)


def skipped_checkpoints(used: str) -> list[str]:
    """Checkpoints newer than the one used: a save that was cut off left them."""
    folder = Path(used)
    newer = [f for f in folder.parent.glob("checkpoint-*") if _step_of(f) > _step_of(folder)]
    return sorted(f.name for f in newer if not _is_complete(f))


def _step_of(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _is_complete(folder: Path) -> bool:
    """The state of the loop is written after weights, optimizer and schedule; if it can be read, they are there."""
    try:
        return bool(json.loads((folder / TRAINER_STATE_NAME).read_text()))
    except (OSError, json.JSONDecodeError):
        return False


def check_output_dir(args: TrainerConfig) -> None:
    """Find out before training, not after it, whether the output folder can be written to.

    Raises:
        ConfigError: it cannot be made or written to.
    """
    if not args.should_save or not args.output_dir:
        return
    try:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=args.output_dir):
            pass
    except OSError as error:
        raise ConfigError(
            f"output_dir {args.output_dir} cannot be written to", why=str(error), fix="name another folder"
        ) from error
