"""SFT here and in the `trl` distribution, side by side: tokens/s, and the time until the first step has ended.

    make bench                                   # sets up both environments
    python benchmarks/sft.py --peer PYTHON       # an interpreter that has the other distribution
    python benchmarks/sft.py --cases long,long_fp32 --runs 5 --threads 2

Both sides get the same model folder, rows, dtype, batch and number of threads, in a process of their own with empty
caches, and take turns (A B A B ...). A step before the timed ones warms up. Tokens that are padding do not count. All
that is not said here is the default of either side: gradient checkpointing and fused AdamW on both.
The ratio is that of the medians; above 1 is faster here.

Two clocks are shown. With one thread on an idle machine they agree; on a busy one, CPU time is the one to read.

`padded` and `packed` are measured in fp32, which is our default on a CPU. `long` is where the head dominates: a model
of 6 layers and width 256, the shape of the smallest published models that have a vocabulary of about 50 thousand, in
bf16 autocast, in which models are trained on accelerators (and the peer's default everywhere). The larger the layers
beside the head, the less a loss can gain: `long_wide` is the same with 4 layers of width 576, `long_fp32` without
autocast, and `long_prompt` with a row of which only the last quarter is learnt.

`startup` runs a script of a user's: imports, preparing 200 conversations, a first step of a tiny model. `startup_10k`
has 10,000 of them. `command` is `trl sft ...`, timed until it reports the first step's loss.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import CASES, TINY, Case, Shape, conversations, token_rows
from command import until_first_loss
from report import about_this_run, write_result

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-peer" / "bin" / "python"
DEFAULT = ["padded", "packed", "long", "startup", "startup_10k", "command"]
START_UP = {
    "startup": ("a script, until its first step has ended; 200 conversations", 200),
    "startup_10k": ("the same with 10,000 conversations", 10_000),
    "command": ("trl sft, until it reports the first loss; 200 conversations", 200),
}
START_UP_GOAL = 2.0


def main() -> int:
    options = parse()
    environments = {"ours": options.ours, "peer": options.peer}
    about = about_this_run(threads=options.threads, runs=options.runs, versions=versions(environments))
    results = {}
    with tempfile.TemporaryDirectory(prefix="trl-bench-") as folder:
        bench = Bench(Path(folder), environments, options.threads, options.runs)
        for name in options.cases:
            results[name] = bench.compare(name)
            write_result(options.output, about, results)
    missed = [name for name, result in results.items() if result["goal"] and result["ratio"] < result["goal"]]
    print(f"\ngoals missed: {', '.join(missed) or 'none'}\nwritten to {options.output}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    names = [*CASES, *START_UP]
    parser.add_argument("--cases", default=",".join(DEFAULT), help=f"comma-separated, of {', '.join(names)}")
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
    """Runs cases in both environments, in one scratch folder.

    A run's `rate` is tokens (start-up: starts) a CPU second, its `wall_rate` the same by the clock.
    """

    def __init__(self, folder: Path, environments: dict[str, str], threads: int, runs: int):
        self.folder, self.environments, self.threads, self.runs = folder, environments, threads, runs

    def compare(self, name: str) -> dict[str, Any]:
        """All runs of a case, with medians and their ratio."""
        title, goal, measure = self.plan(name)
        print(f"\n{name}: {title}", flush=True)
        runs: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
        for _ in range(self.runs):
            for side in runs:
                runs[side].append(measure(side))
                print(f"  {side}  {line(runs[side][-1])}", flush=True)
        result = {"title": title, "goal": goal, **summary(runs), "runs": runs}
        wanted = f" (goal {goal:g})" if goal else ""
        print(
            f"  ratio {result['ratio']:.2f}{wanted} by CPU time, {result['wall_ratio']:.2f} by the clock", flush=True
        )
        return result

    def plan(self, name: str) -> tuple[str, float | None, Callable[[str], dict[str, Any]]]:
        """Title, goal, and how to measure one side once."""
        if name in CASES:
            case = CASES[name]
            return case.title, case.goal, lambda side: self.throughput(case, side)
        title, rows = START_UP[name]
        measure = self.command if name == "command" else self.start_up
        return title, START_UP_GOAL, lambda side: measure(side, rows)

    def throughput(self, case: Case, side: str) -> dict[str, Any]:
        rows = self.rows(f"{case.title}.jsonl".replace(" ", "-"), lambda: token_rows(case))
        result = self.script(side, self.model(case.shape), rows, case.settings, case.steps)
        rates = {"rate": result["tokens"] / result["cpu_seconds"], "wall_rate": result["tokens"] / result["seconds"]}
        return {**result, **rates}

    def start_up(self, side: str, count: int) -> dict[str, Any]:
        rows = self.rows(f"conversations-{count}/train.jsonl", lambda: conversations(count))
        settings = {"per_device_train_batch_size": 8, "bf16": False}
        result = self.script(side, self.model(TINY), rows, settings, steps=0)
        return {
            **result,
            "rate": 1 / result["first_step_cpu_seconds"],
            "wall_rate": 1 / result["first_step_seconds"],
        }

    def command(self, side: str, count: int) -> dict[str, Any]:
        rows = self.rows(f"conversations-{count}/train.jsonl", lambda: conversations(count))
        model = self.model(TINY)
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            program = Path(self.environments[side]).parent / "trl"
            seconds, spent = until_first_loss(program, model, rows.parent, scratch, environment(self.threads, scratch))
        return {
            "first_step_seconds": seconds,
            "first_step_cpu_seconds": spent,
            "rate": 1 / spent,
            "wall_rate": 1 / seconds,
        }

    def script(self, side: str, model: Path, rows: Path, settings: dict[str, Any], steps: int) -> dict[str, Any]:
        """One process with new, empty caches: rows are prepared every time, on both sides."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            job = Path(scratch) / "job.json"
            content = {"model": str(model), "rows": str(rows), "settings": settings, "steps": steps}
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
            words = [
                str(HERE / "sft_model.py"),
                str(folder),
                *map(str, (shape.layers, shape.hidden, shape.vocabulary)),
            ]
            made = subprocess.run(
                [self.environments["ours"], *words],
                env=environment(self.threads, str(self.folder)),
                capture_output=True,
                text=True,
            )
            if made.returncode != 0:
                raise SystemExit(f"the model could not be made:\n{made.stderr[-4000:]}")
        return folder

    def rows(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> Path:
        path = self.folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in make()))
        return path


def line(run: dict[str, Any]) -> str:
    if run.get("tokens"):
        rates = f"{run['rate']:8.1f} tokens a CPU second  {run['wall_rate']:8.1f} tokens/s"
        return f"{rates}  {run['peak_memory_gib']:5.2f} GiB"
    return f"{run['first_step_cpu_seconds']:6.2f} CPU seconds  {run['first_step_seconds']:6.2f} seconds"


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
        "RAYON_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": scratch,
        "TRL_CACHE": scratch,
    }


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
