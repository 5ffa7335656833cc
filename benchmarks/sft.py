"""SFT here and in the `trl` distribution, side by side: tokens/s, and the time until the first step has ended.

    make bench                                   # sets up both environments
    python benchmarks/sft.py --peer PYTHON       # an interpreter that has the other distribution
    python benchmarks/sft.py --cases long --runs 5 --threads 2

Both sides get the same model folder, rows, dtype, batch and number of threads, in a process of their own, and take
turns (A B A B ...). A step before the timed ones warms up. Tokens that are padding do not count.
The ratio is that of the medians; above 1 is faster here.

Two clocks are shown. With one thread on an idle machine they agree; on a busy one, CPU time is the one to read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cases import CASES, TINY, Case, Shape, conversations, token_rows
from report import about_this_run, write_result

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-peer" / "bin" / "python"
START_UP_ROWS = 200
START_UP_GOAL = 2.0


def main() -> int:
    options = parse()
    environments = {"ours": options.ours, "peer": options.peer}
    with tempfile.TemporaryDirectory(prefix="trl-bench-") as folder:
        bench = Bench(Path(folder), environments, options.threads, options.runs)
        results = {name: bench.compare(name) for name in options.cases}
    missed = [name for name, result in results.items() if result["goal"] and result["ratio"] < result["goal"]]
    print(f"\ngoals missed: {', '.join(missed) or 'none'}")
    about = about_this_run(threads=options.threads, runs=options.runs, versions=versions(environments))
    write_result(options.output, about, results)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    names = [*CASES, "startup"]
    parser.add_argument("--cases", default=",".join(names), help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--runs", type=int, default=3, help="alternations of each case (3)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (1)")
    parser.add_argument("--ours", default=sys.executable, help="interpreter that has this project (this one)")
    parser.add_argument("--peer", default=str(PEER), help="interpreter that has the other distribution")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "sft.json", help="where the numbers go")
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    if unknown := set(options.cases) - set(names):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if not Path(options.peer).exists():
        parser.error(f"there is no {options.peer}: run `make bench`, or name an interpreter with --peer")
    return options


class Bench:
    """Runs cases in both environments, in one scratch folder."""

    def __init__(self, folder: Path, environments: dict[str, str], threads: int, runs: int):
        self.folder, self.environments, self.threads, self.runs = folder, environments, threads, runs

    def compare(self, name: str) -> dict[str, Any]:
        """All runs of a case, with medians and their ratio."""
        measure = self.start_up if name == "startup" else lambda side: self.throughput(CASES[name], side)
        title = "start-up to the end of the first step" if name == "startup" else CASES[name].title
        print(f"\n{name}: {title}", flush=True)
        runs: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
        for _ in range(self.runs):
            for side in runs:
                runs[side].append(measure(side))
                print(f"  {side}  {runs[side][-1]['line']}", flush=True)
        goal = START_UP_GOAL if name == "startup" else CASES[name].goal
        result = {"title": title, "goal": goal, **summary(runs), "runs": runs}
        wanted = f"  (goal {goal:g})" if goal else ""
        print(
            f"  ratio {result['ratio']:.2f} by CPU time{wanted}, {result['wall_ratio']:.2f} by the clock", flush=True
        )
        return result

    def throughput(self, case: Case, side: str) -> dict[str, Any]:
        result = self.run(side, self.model(case.shape), self.rows(case), case.settings, case.steps)
        result["rate"] = result["tokens"] / result["cpu_seconds"]
        result["wall_rate"] = result["tokens"] / result["seconds"]
        result["line"] = f"{result['rate']:8.1f} tokens a CPU second  {result['wall_rate']:8.1f} tokens/s"
        return result

    def start_up(self, side: str) -> dict[str, Any]:
        rows = self.folder / "conversations.jsonl"
        if not rows.exists():
            write_rows(rows, conversations(START_UP_ROWS))
        result = self.run(side, self.model(TINY), rows, {"per_device_train_batch_size": 8}, steps=0)
        result["rate"] = 1 / result["first_step_cpu_seconds"]
        result["wall_rate"] = 1 / result["first_step_seconds"]
        result["line"] = (
            f"{result['first_step_cpu_seconds']:6.2f} CPU seconds  {result['first_step_seconds']:6.2f} seconds"
        )
        return result

    def run(self, side: str, model: Path, rows: Path, settings: dict[str, Any], steps: int) -> dict[str, Any]:
        """One process. Its caches are new and empty: rows are prepared every time, on both sides."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            job = Path(scratch) / "job.json"
            content = {
                "model": str(model),
                "rows": str(rows),
                "settings": settings,
                "steps": steps,
                "threads": self.threads,
            }
            job.write_text(json.dumps({**content, "began": time.time()}))
            done = subprocess.run(
                [self.environments[side], str(HERE / "sft_case.py"), str(job)],
                env=environment(self.threads, scratch),
                capture_output=True,
                text=True,
            )
        if done.returncode != 0:
            raise SystemExit(f"{side} failed:\n{done.stderr[-4000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def model(self, shape: Shape) -> Path:
        folder = self.folder / f"model-{shape.layers}-{shape.hidden}-{shape.vocabulary}"
        if not folder.exists():
            command = [str(HERE / "sft_model.py"), str(folder), str(shape.layers), str(shape.hidden)]
            subprocess.run(
                [self.environments["ours"], *command, str(shape.vocabulary)],
                check=True,
                env=environment(self.threads, str(self.folder)),
                stderr=subprocess.DEVNULL,
            )
        return folder

    def rows(self, case: Case) -> Path:
        path = self.folder / f"rows-{case.kind}-{case.prompt_share:g}-{case.shape.vocabulary}.jsonl"
        if not path.exists():
            write_rows(path, token_rows(case))
        return path


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    medians = {
        side: {key: statistics.median(run[key] for run in all_runs) for key in ("rate", "wall_rate")}
        for side, all_runs in runs.items()
    }
    return {
        "ratio": medians["ours"]["rate"] / medians["peer"]["rate"],
        "wall_ratio": medians["ours"]["wall_rate"] / medians["peer"]["wall_rate"],
        "medians": medians,
    }


def environment(threads: int, scratch: str) -> dict[str, str]:
    """The same for both: no network, no accelerator, no spinning threads, caches in `scratch`."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": scratch,
        "TRL_CACHE": scratch,
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def versions(environments: dict[str, str]) -> dict[str, dict[str, str]]:
    """Versions of the packages that matter, in each environment."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "found = {'python': platform.python_version()}\n"
        "for name in ('trl', 'trl-distributed', 'torch', 'transformers', 'accelerate', 'datasets', 'peft'):\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    return {
        side: json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)
        for side, python in environments.items()
    }


if __name__ == "__main__":
    sys.exit(main())
