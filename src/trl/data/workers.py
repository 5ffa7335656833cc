"""A function over chunks of rows, in this process or in forked workers, results in order."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from trl.errors import DataError

Result = TypeVar("Result")

_function: Callable[[range], object] | None = None
"""In a worker: the function. It came with the fork, so it need not be picklable."""


def map_chunks(function: Callable[[range], Result], rows: int, num_proc: int, chunk: int = 1000) -> Iterator[Result]:
    """Yield `function(range(first, last))` for consecutive ranges that cover `rows`, in order.

    With `num_proc` > 1 that many workers are forked; they end with this process, however it ends. An exception of
    `function` is raised here, and no worker is left.
    """
    # Small data sets are cut finer, so that every worker has something to do.
    chunk = max(1, min(chunk, -(-rows // (4 * num_proc))))
    ranges = [range(first, min(first + chunk, rows)) for first in range(0, rows, chunk)]
    if num_proc == 1 or len(ranges) < 2:
        yield from map(function, ranges)
        return
    pool = ProcessPoolExecutor(
        max_workers=min(num_proc, len(ranges)),
        mp_context=multiprocessing.get_context("fork"),
        initializer=_start_worker,
        initargs=(function, os.getpid()),
    )
    waiting: deque[Future[Result]] = deque()
    # Set before the fork: threads of the tokenizer would only compete with the other workers, do not survive a fork,
    # and are complained about where the variable is unset.
    threads = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        for part in ranges:
            waiting.append(pool.submit(_call, part))  # type: ignore[arg-type]
            if len(waiting) > 4 * num_proc:  # bounds the results that lie in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a worker that prepares the data was killed",
            "usually by the system, for memory",
            f"use fewer workers than dataset_num_proc={num_proc}, or give the job more memory",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if threads is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = threads


def _start_worker(function: Callable[[range], object], parent: int) -> None:
    global _function
    _function = function
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker whose parent was killed would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _call(rows: range) -> object:
    assert _function is not None
    return _function(rows)
