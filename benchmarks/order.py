"""The order of rows at scale: opening 10^9 rows on any of 10^4 ranks at any step. `python benchmarks/order.py`.

A rank opens the data at step k: it makes the order and asks for the rows of that step, from which it takes its own.
Milliseconds for one row a rank and step (G = 10^4 rows), the median over steps from first to last, and the memory
that it took.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from pathlib import Path

from report import about_this_run, write_result

from trl.layout.deal import microbatch_of
from trl.layout.order import Order, Permutation

ROWS, RANKS = 10**9, 10**4
STEPS = [0, 1, 777, ROWS // RANKS // 2, ROWS // RANKS - 1]


def open_at(rows: int, ranks: int, epoch: int, step: int, rank: int) -> int:
    """The row of `rank` in a step, from nothing."""
    order = Order(rows, ranks, seed=17)
    return order.step_rows(epoch, step)[microbatch_of(rank, 0, ranks)]


def milliseconds(rows: int, ranks: int, steps: list[int]) -> dict[str, float]:
    times = []
    for step in steps:
        for rank in (0, ranks // 2, ranks - 1):
            began = time.perf_counter()
            open_at(rows, ranks, epoch=3, step=step, rank=rank)
            times.append((time.perf_counter() - began) * 1000)
    tracemalloc.start()
    open_at(rows, ranks, epoch=3, step=steps[-1], rank=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"median_ms": statistics.median(times), "slowest_ms": max(times), "memory_kib": peak / 1024}


def one_row_ms(rows: int) -> float:
    """A single position, without the rest of its step."""
    permutation = Permutation(rows, key=5)
    began = time.perf_counter()
    for position in range(0, rows, rows // 1000):
        permutation(position)
    return time.perf_counter() - began  # seconds of a thousand rows are milliseconds of one


def main() -> int:
    results = {
        "10^9 rows, 10^4 ranks": milliseconds(ROWS, RANKS, STEPS),
        "10^9 rows, 64 ranks": milliseconds(ROWS, 64, [0, 1, ROWS // 64 // 2, ROWS // 64 - 1]),
        "10^4 rows, 64 ranks": milliseconds(10**4, 64, [0, 1, 78, 155]),
        "one row of 10^9": {"median_ms": one_row_ms(ROWS)},
    }
    for name, result in results.items():
        print(f"{name:<24}" + "  ".join(f"{key} {value:.3f}" for key, value in result.items()))
    write_result(Path(__file__).parent / "results" / "order.json", about_this_run(), results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
