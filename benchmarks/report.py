"""What a result needs to be read later: when, on what, with which versions, by which command."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

# Instruction sets that decide how fast a matrix product is.
_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bf16", "avx512f": "AVX-512", "avx2": "AVX2"}


def processor() -> str:
    """The CPU in general words, for example "AMD EPYC, 2 cores, AVX-512 with bf16"."""
    name, flags = "CPU", []
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = value.split()
    except OSError:
        pass
    best = next((words for flag, words in _FLAGS.items() if flag in flags), None)
    return ", ".join(filter(None, (name, f"{os.cpu_count()} cores", best)))


def about_this_run(**more: Any) -> dict[str, Any]:
    script = Path(sys.argv[0])
    command = shlex.join(["python", f"benchmarks/{script.name}", *sys.argv[1:]])
    return {"date": datetime.date.today().isoformat(), "processor": processor(), "command": command, **more}


def single_threaded() -> dict[str, str]:
    """The environment, with one thread that does not spin and no accelerator."""
    one = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **one}


def write_result(path: Path, about: dict[str, Any], results: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
