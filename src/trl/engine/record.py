"""What a run did, step by step, in files that `trl diff` compares.

`OUTPUT_DIR/run.json` holds the arguments, the model and the layout, `OUTPUT_DIR/steps.jsonl` one line an optimizer
step: loss, gradient norm, learning rate, and a hash of the rows that were read. The hash comes from the rows
themselves, summed over ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from ..layout.records import RUN_FILE, STEPS_FILE, read_steps


class RunRecord:
    """Writer of the two files; made on the first process only.

    Args:
        folder: the run's output folder.
        first_step: steps up to this one are kept (a resumed run goes on in the same file), later ones are dropped.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], first_step: int):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(json.dumps(run, indent=1, default=str) + "\n")
        kept = [line for line in read_steps(folder) if line["step"] <= first_step]
        self._file: TextIO = (folder / STEPS_FILE).open("w", buffering=1)
        for entry in kept:
            self._write(entry)
        self._last = first_step

    def add(self, step: int, entry: Mapping[str, Any]) -> None:
        """One optimizer step; repeated calls for the same step are ignored."""
        if step > self._last:
            self._write({"step": step, **entry})
            self._last = step

    def _write(self, entry: Mapping[str, Any]) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}
        self._file.write(json.dumps(finite) + "\n")

    def close(self) -> None:
        self._file.close()


def describe_model(model: nn.Module) -> dict[str, Any]:
    """What of a model makes a run: its class, its size, what is trained of it, and its adapters."""
    parameters = list(model.parameters())
    adapters = getattr(model, "peft_config", None) or {}
    return {
        "class": type(model).__name__,
        "name": getattr(getattr(model, "config", None), "name_or_path", None),
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "adapters": {
            name: {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
            for name, config in adapters.items()
        },
    }
