"""No process of a job outlives it.

Every process of a job carries `TRL_JOB_ID=<id>` in the environment it was started with, and so do processes that it
forks or starts (workers of a data loader, of `map`, servers). Whoever ends last removes what is left, by process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trl.launch.environment import AGENT_VARIABLE, JOB_VARIABLE

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(env: Mapping[str, str] | None = None) -> None:
    """Ask the kernel to kill this process when its agent ends, however the agent ends.

    Does nothing where no agent of ours is the parent. To be called first thing in a worker.
    """
    text = (os.environ if env is None else env).get(AGENT_VARIABLE)
    if text is None or not sys.platform.startswith("linux"):
        return
    agent = int(text)
    if os.getppid() == agent:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # An agent that ended before that call sends no signal. If it lives, this is a process that a worker started.
    if os.getppid() != agent and not _exists(agent):
        os._exit(128 + signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def job_processes(job_id: str) -> list[int]:
    """Ids of all processes of this user that carry the mark of a job, without the calling process."""
    mark = f"{JOB_VARIABLE}={job_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid == os.getuid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, or not ours to read
            continue
    return found


def end_job(job_id: str, grace: float = 0.0) -> int:
    """End every process that carries the mark of a job.

    Args:
        job_id: the job.
        grace: seconds between SIGTERM and SIGKILL; at 0, SIGKILL at once.

    Returns:
        How many processes were found.
    """
    found: set[int] = set()
    deadline = time.monotonic() + grace
    signalled: set[int] = set()
    while remaining := job_processes(job_id):
        found.update(remaining)
        late = time.monotonic() >= deadline
        for pid in remaining:
            if late or pid not in signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled.update(remaining)
        if time.monotonic() > deadline + 5.0:  # stuck in the kernel: nothing more can be done
            break
        time.sleep(0.02)
    return len(found)


def start_guardian(job_id: str) -> int:
    """Fork a process that waits for the end of the caller and then ends what the job left behind.

    It covers what the caller cannot: its own death by SIGKILL. To be called before threads exist and before heavy
    imports, so that the copy is small.

    Returns:
        The process id of the guardian.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _guard(parent, job_id)
    finally:
        os._exit(0)


def _guard(parent: int, job_id: str) -> None:
    os.setsid()  # a signal to the group of the caller is not for the guardian
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # whoever reads the output of the job must not wait for the guardian
        os.dup2(null, descriptor)
    os.closerange(3, 256)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"trl-guard")
    while os.getppid() == parent:
        time.sleep(0.1)
    end_job(job_id)
