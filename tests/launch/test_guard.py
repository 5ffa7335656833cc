"""Processes of a job are found by their mark and ended by their id."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.conftest import until
from trl.launch.guard import die_with_parent, end_job, job_processes

SLEEP = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.fixture
def start():
    processes = []

    def run(code: str, job: str | None) -> subprocess.Popen:
        env = {**os.environ, **({"TRL_JOB_ID": job} if job else {})}
        processes.append(subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_only_marked_processes_are_found_and_ended(start):
    mine, other, unmarked = start(SLEEP, "a1"), start(SLEEP, "a12"), start(SLEEP, None)
    assert until(lambda: job_processes("a1") == [mine.pid])
    assert end_job("a1", grace=2.0) == 1
    assert mine.wait(5) == -signal.SIGTERM
    assert other.poll() is None
    assert unmarked.poll() is None


def test_grace_then_kill(start):
    deaf = start(DEAF, "b1")
    deaf.stdout.readline()
    begin = time.monotonic()
    end_job("b1", grace=0.5)
    assert deaf.wait(5) == -signal.SIGKILL
    assert 0.4 < time.monotonic() - begin < 3


def test_no_grace(start):
    deaf = start(DEAF, "c1")
    deaf.stdout.readline()
    begin = time.monotonic()
    end_job("c1")
    assert deaf.wait(5) == -signal.SIGKILL
    assert time.monotonic() - begin < 3


def test_never_the_caller(start):
    code = "import os; from trl.launch.guard import end_job; print(end_job(os.environ['TRL_JOB_ID']), 'alive')"
    assert start(code, "d1").communicate()[0] == b"0 alive\n"


def test_die_with_parent(start, tmp_path):
    """The kernel kills a worker whose agent was killed, and a worker that is told too late ends itself."""
    child = (
        "import os, time; from trl.launch.guard import die_with_parent; die_with_parent();"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys, time; env = {**os.environ, 'TRL_AGENT_PID': str(os.getpid())};"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env=env); time.sleep(60)"
    )
    process = start(parent, None)
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert until(lambda: not alive(pid), 5)

    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    ).stdout
    env = {**os.environ, "TRL_AGENT_PID": gone.strip()}
    late = subprocess.run([sys.executable, "-c", child], env=env, capture_output=True, timeout=20)
    assert late.returncode == 128 + signal.SIGKILL
    assert late.stdout == b""


def test_a_process_that_a_worker_starts_is_not_meant(start):
    """It has the variables of the worker, but another parent."""
    code = "from trl.launch.guard import die_with_parent; die_with_parent(); print('alive')"
    env = {**os.environ, "TRL_AGENT_PID": str(os.getppid())}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).stdout == b"alive\n"


def test_without_an_agent_nothing_happens():
    die_with_parent({})


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
