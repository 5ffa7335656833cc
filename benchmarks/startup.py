"""Seconds until the command answers: `python benchmarks/startup.py [RUNS]`. Prints the median of several runs each."""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

TRL = str(Path(sysconfig.get_path("scripts")) / "trl")
CASES = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import trl": ([sys.executable, "-c", "import trl"], None),
    "trl --help": ([TRL, "--help"], 0.2),
    "trl --version": ([TRL, "--version"], 0.2),
    "trl sft --help": ([TRL, "sft", "--help"], 1.5),
    "trl sft --learning_rat 3  (refused)": ([TRL, "sft", "--learning_rat", "3"], 3.0),
}


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"{'':<38}{'median':>9}{'slowest':>9}{'goal':>9}")
    too_slow = 0
    for name, (command, goal) in CASES.items():
        seconds(command)  # byte code and files of the first run
        times = [seconds(command) for _ in range(runs)]
        median = statistics.median(times)
        print(f"{name:<38}{median:>8.3f}s{max(times):>8.3f}s{f'{goal:.1f}s' if goal else '':>9}")
        too_slow += goal is not None and median > goal
    return 1 if too_slow else 0


if __name__ == "__main__":
    sys.exit(main())
