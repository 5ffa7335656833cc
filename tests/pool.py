"""A session-wide pool of worker processes: torch is imported once in each, not once a test.

    def work(x): ...                      # a module-level function; it finds RANK and WORLD_SIZE in the environment
    results = pool.run(work, 3, x=1)      # on three ranks, joined by gloo; a list of what they returned

A function that raises on any rank fails the test with that rank's traceback, and the pool starts anew.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class WorkerError(AssertionError):
    """A rank raised, died or did not finish."""


class Pool:
    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Connection]] = []
        self._folder = tempfile.TemporaryDirectory()
        self._tasks = 0

    def run(
        self, function: Callable[..., Any], ranks: int, timeout: float = 120, patience: float = 60, **arguments: Any
    ) -> list[Any]:
        """Call `function(**arguments)` on ranks 0..ranks-1 and return their results.

        Args:
            timeout: seconds for all of it.
            patience: seconds that a collective waits for its peers.
        """
        while len(self._workers) < ranks:
            self._start_one()
        self._tasks += 1
        store = os.path.join(self._folder.name, f"store{self._tasks}")
        for rank in range(ranks):
            self._workers[rank][1].send_bytes(pickle.dumps((function, arguments, rank, ranks, store, patience)))
        deadline = time.monotonic() + timeout
        results: list[Any] = [None] * ranks
        waiting = set(range(ranks))
        while waiting:
            for rank in sorted(waiting):
                pipe = self._workers[rank][1]
                if pipe.poll(0.02):
                    try:
                        ok, value = pickle.loads(pipe.recv_bytes())
                    except EOFError:
                        self.close()
                        raise WorkerError(f"rank {rank} of {ranks} died in {function.__name__}") from None
                    if not ok:
                        self.close()
                        raise WorkerError(f"rank {rank} of {ranks} in {function.__name__}:\n{value}")
                    results[rank] = value
                    waiting.discard(rank)
            if time.monotonic() > deadline:
                self.close()
                raise WorkerError(
                    f"ranks {sorted(waiting)} of {ranks} did not finish {function.__name__} in {timeout} s"
                )
        return results

    def _start_one(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._workers.append((process, ours))

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers.clear()


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    # Daemonic, so that the session never waits for it; but data loaders inside may have processes of their own.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    clean = dict(os.environ)
    while True:
        try:
            function, arguments, rank, ranks, store, patience = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        os.environ.clear()
        os.environ.update(clean)
        try:
            _join(rank, ranks, store, patience)
            answer = (True, function(**arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        _leave()
        pipe.send_bytes(pickle.dumps(answer))


def _join(rank: int, ranks: int, store: str, patience: float) -> None:
    """The environment of a launcher, and a process group through a file: no port is needed."""
    import torch.distributed as dist

    if ranks == 1:
        return
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="localhost",
        MASTER_PORT="1",
    )
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=patience),
    )


def _leave() -> None:
    """Forget the process group and what accelerate remembers of it."""
    import torch.distributed as dist
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()
    if dist.is_initialized():
        dist.destroy_process_group()
