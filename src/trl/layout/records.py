"""The files in which a run is recorded: shared by the trainer that writes them and `trl diff` that compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's steps file; a last line that was cut off by a crash is left out."""
    file = folder / STEPS_FILE
    entries = []
    for line in file.read_text().splitlines() if file.is_file() else []:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries
