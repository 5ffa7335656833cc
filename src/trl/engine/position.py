"""What a checkpoint records of the contract, and what must not have changed when it is resumed (rule 6).

The position itself is transformers': the number of the optimizer step. With the same G, seed and rows it says which
row comes next, on any layout.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

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
    """The folder to resume from: True (also as text, from a command line) means the newest in `output_dir`."""
    if asked is None or asked is False or str(asked).lower() in ("false", ""):
        return None
    if asked is not True and str(asked).lower() != "true":
        return str(asked)
    newest = get_last_checkpoint(output_dir) if output_dir and Path(output_dir).is_dir() else None
    if newest is None:
        raise ConfigError(
            f"resume_from_checkpoint is set, but {output_dir} holds no checkpoint", fix="leave it out to start anew"
        )
    return newest


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
