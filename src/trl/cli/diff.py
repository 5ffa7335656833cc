"""`trl diff RUN_A RUN_B`: where two runs part, and what they were told differently.

Reads `run.json` and `steps.jsonl` of two output folders; imports neither torch nor anything else that is slow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trl.errors import ConfigError
from trl.layout.records import RUN_FILE, STEPS_FILE, read_steps

USAGE = """usage: trl diff RUN_A RUN_B [--tolerance 1e-6]

Says at which step two runs part, in what (rows, loss, gradient norm, learning rate), and which arguments and which
parts of the layout differ. RUN_A and RUN_B are output folders. Numbers are equal within --tolerance of their size.

exit code: 0 the same run, 1 they part, 2 a mistake"""

COMPARED = ("rows", "learning_rate", "loss", "grad_norm")
# Arguments that say how a run is carried out or where it is kept, not what it is.
EXECUTION = {
    "output_dir", "run_name", "logging_dir", "per_device_train_batch_size", "per_device_eval_batch_size",
    "gradient_accumulation_steps", "local_rank", "ddp_timeout", "ddp_backend", "dataloader_num_workers",
    "dataloader_prefetch_factor", "dataset_num_proc", "disable_tqdm", "logging_steps", "report_to",
    "gradient_checkpointing", "activation_checkpointing", "resume_from_checkpoint",
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the comparison and return the exit code."""
    if "-h" in argv or "--help" in argv:
        print(USAGE)
        return 0
    folders, tolerance = _arguments(list(argv))
    runs = [_read(folder) for folder in folders]
    lines = [*settings_that_differ(runs[0][0], runs[1][0])]
    parting = first_difference(runs[0][1], runs[1][1], tolerance)
    steps = min(len(runs[0][1]), len(runs[1][1]))
    lines.append(parting or f"the same run: {steps} steps in common, equal within {tolerance:g}")
    print("\n".join(lines))
    return 1 if parting else 0


def _arguments(argv: list[str]) -> tuple[list[Path], float]:
    tolerance = 1e-6
    words: list[str] = []
    while argv:
        word = argv.pop(0)
        name, equals, value = word.partition("=")
        if name != "--tolerance":
            words.append(word)
            continue
        value = value if equals else (argv.pop(0) if argv else "")
        try:
            tolerance = float(value)
        except ValueError:
            raise ConfigError(f"--tolerance takes a number, not {value!r}") from None
    if len(words) != 2 or any(word.startswith("-") for word in words):
        raise ConfigError("trl diff takes two output folders", fix="trl diff out/a out/b")
    return [Path(word) for word in words], tolerance


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    run = folder / RUN_FILE
    for file in (run, folder / STEPS_FILE):
        if not file.is_file():
            raise ConfigError(f"there is no {file}", fix="name the output_dir of a run of this package")
    return json.loads(run.read_text()), read_steps(folder)


def settings_that_differ(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    """A line for each argument and each part of the layout that is not the same, what the run is first."""
    for title, wanted in (("argument", False), ("execution", True)):
        for name in sorted(a["arguments"].keys() | b["arguments"].keys()):
            values = [run["arguments"].get(name) for run in (a, b)]
            if (name in EXECUTION) is wanted and values[0] != values[1]:
                yield f"{title}: {name}: {values[0]} | {values[1]}"
    for part in ("model", "data", "layout"):
        flat = [_flat(run.get(part, {})) for run in (a, b)]
        for name in sorted(flat[0].keys() | flat[1].keys()):
            values = [tree.get(name) for tree in flat]
            if values[0] != values[1]:
                yield f"{part}: {name}: {values[0]} | {values[1]}"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their path: {"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value})
    return out


def first_difference(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerance: float) -> str | None:
    """The first step that is not the same, and in what; None where all common steps are and both have as many."""
    by_step = {entry["step"]: entry for entry in b}
    for entry in a:
        other = by_step.get(entry["step"])
        if other is None:
            return f"part at step {entry['step']}: only the first run has it"
        parts = [
            f"{name} {entry.get(name)} | {other.get(name)}"
            for name in COMPARED
            if not _same(entry.get(name), other.get(name), tolerance)
        ]
        if parts:
            return f"part at step {entry['step']}: " + ", ".join(parts)
    if len(b) > len(a):
        return f"part after step {len(a)}: only the second run goes on"
    return None


def _same(x: Any, y: Any, tolerance: float) -> bool:
    if isinstance(x, int | float) and isinstance(y, int | float):
        return math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance * 1e-3) or (math.isnan(x) and math.isnan(y))
    return x == y
