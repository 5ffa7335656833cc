"""`trl sft ...` until it reports the loss of its first step: seconds by the clock and of CPU, of all its processes."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

FIRST_LOSS = re.compile(r"\bloss\W{1,5}\d+\.\d+")


def until_first_loss(
    program: Path, model: Path, rows: Path, scratch: str, environment: dict[str, str]
) -> tuple[float, float]:
    """Seconds and CPU seconds from the start of `program` to the line that holds the first loss.

    Raises:
        SystemExit: it ended without one.
    """
    options = {
        "model_name_or_path": model,
        "dataset_name": rows,
        "output_dir": Path(scratch) / "out",
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": "true",
        "bf16": "false",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    began, lines, found = time.monotonic(), [], None
    process = subprocess.Popen(
        [str(program), "sft", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if found is None and FIRST_LOSS.search(line):
            found = time.monotonic() - began, session_cpu_seconds(process.pid)
    process.wait()
    if found is None or process.returncode != 0:
        raise SystemExit(f"{program} failed:\n{''.join(lines)[-4000:]}")
    return found


def session_cpu_seconds(session: int) -> float:
    """CPU time so far of the live processes of a session and of the children they have waited for."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))  # user, system, and the same of children
    return ticks / os.sysconf("SC_CLK_TCK")
