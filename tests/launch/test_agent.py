"""Real agents of torch with workers that import no torch."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from trl.launch.agent import describe_failure, exit_code, first_failure
from trl.launch.failure import FailureRecord

HOST = socket.gethostname()
STUB = os.path.join(os.path.dirname(__file__), "stub_worker.py")


def line_of(text: str) -> int:
    with open(STUB) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_a_job_that_ends_well(start_job):
    job = start_job("ok")
    code, lines = job.finish()
    assert code == 0
    assert lines == [
        f"trl: OMP_NUM_THREADS={1} (2 cores / 2 processes; set it to choose another number)",
        "trl: same as: OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 --standalone --local_addr 127.0.0.1 "
        f"-m stub_worker {job.folder} ok",
    ]
    assert job.seen(0)["OMP_NUM_THREADS"] == "1"
    assert job.seen(1)["world_size"] == 2
    assert job.seen(0)["ppid"] == job.seen(1)["ppid"] == job.process.pid


def test_the_first_exception_is_the_last_thing_on_screen(start_job):
    job = start_job("stubborn", "raise:a unique text", flags=("--nproc_per_node", "2", "--shutdown_timeout", "1"))
    code, lines = job.finish()
    assert code == 1
    assert time.monotonic() - job.started < 15
    assert lines[-3:] == [
        f"trl: rank 1 of 2 on {HOST} failed",
        "ValueError: a unique text",
        f"  at {STUB}:{line_of('raise ValueError(text)')} in act",
    ]
    assert sum("a unique text" in line for line in lines) == 3  # command, traceback, report
    assert not any("closing signal" in line or "exitcode" in line for line in lines)
    assert job.leftovers() == []


def test_a_mistake_of_the_user_has_no_traceback(start_job):
    job = start_job("mistake:row 7 is empty")
    code, lines = job.finish()
    assert code == 2
    assert "Traceback (most recent call last):" not in lines
    assert lines[2:4] == ["trl: row 7 is empty", "  fix: mend it"]
    assert sum("row 7 is empty" in line for line in lines) == 2  # command, report


def test_a_killed_rank_is_named_before_those_that_lost_it(start_job):
    job = start_job("lost", "kill:SIGKILL")  # rank 0 raises a little later, and leaves the only error file
    code, lines = job.finish()
    assert code == 128 + signal.SIGKILL
    assert f"trl: rank 1 on {HOST} (process {job.seen(1)['pid']}) was killed by SIGKILL" in lines
    assert "Connection closed by peer" not in "\n".join(lines)


def test_a_killed_rank(start_job):
    job = start_job("sleep")
    job.wait_for_ranks(2)
    os.kill(job.seen(1)["pid"], signal.SIGKILL)
    code, lines = job.finish(15)
    assert code == 128 + signal.SIGKILL
    assert lines[2] == f"trl: rank 1 on {HOST} (process {job.seen(1)['pid']}) was killed by SIGKILL"
    assert "most often the machine ran out of memory" in lines[3]
    assert job.leftovers() == []


def test_an_exit_code_of_a_worker(start_job):
    job = start_job("sleep", "exit:7")
    code, lines = job.finish()
    assert code == 7
    assert lines[-1].startswith(f"trl: rank 1 on {HOST} (process ")
    assert lines[-1].endswith("ended with exit code 7 and without an exception")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("action", ["child", "stubborn"])
def test_a_signal_to_the_command_alone_ends_everything(start_job, signum, action):
    short = ("--shutdown_timeout", "1") if signum == signal.SIGINT else ()
    job = start_job(action, flags=("--nproc_per_node", "2", *short))
    job.wait_for_processes(4 if action == "child" else 2)
    sent = job.signal(signum)
    code, lines = job.finish()
    assert time.monotonic() - sent < 10
    assert code == 128 + signum
    assert lines[2:] == [f"trl: stopped by {signum.name}; all processes of the job have ended"]
    assert job.leftovers() == []


def test_an_interrupt_reaches_workers_that_python_cannot_interrupt(start_job):
    """A worker in a collective never sees an interrupt; here it ignores it."""
    job = start_job("deaf")
    job.wait_for_ranks(2)
    sent = job.signal(signal.SIGINT)
    assert job.finish()[0] == 128 + signal.SIGINT
    assert time.monotonic() - sent < 3


def test_a_second_interrupt_kills_at_once(start_job):
    job = start_job("stubborn", flags=("--nproc_per_node", "2", "--shutdown_timeout", "60"))
    job.wait_for_ranks(2)
    job.signal(signal.SIGINT)
    time.sleep(1.0)
    assert job.process.poll() is None
    sent = job.signal(signal.SIGINT)
    code, _ = job.finish()
    assert code == 128 + signal.SIGINT
    assert time.monotonic() - sent < 3
    assert job.leftovers() == []


def test_a_signal_before_the_workers_exist(start_job):
    job = start_job("sleep")
    while "same as" not in job.process.stdout.readline():
        pass
    time.sleep(0.2)  # torch is being imported
    job.signal(signal.SIGTERM)
    code, lines = job.finish()
    assert code == 128 + signal.SIGTERM
    assert lines[-1].startswith("trl: stopped by SIGTERM")
    assert list(job.folder.iterdir()) == []


def test_nothing_outlives_an_agent_that_is_killed(start_job):
    job = start_job("child")
    job.wait_for_processes(4)
    job.signal(signal.SIGKILL)
    code, _ = job.finish(10)
    assert code == -signal.SIGKILL
    assert job.leftovers(seconds=5) == []


def test_nohup_is_respected(start_job, monkeypatch):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by the job
    try:
        job = start_job("sleep")
    finally:
        signal.signal(signal.SIGHUP, previous)
    job.wait_for_ranks(2)
    job.signal(signal.SIGHUP)
    time.sleep(0.5)
    assert job.process.poll() is None
    job.signal(signal.SIGTERM)
    assert job.finish()[0] == 128 + signal.SIGTERM


def test_a_restart(start_job):
    job = start_job("flaky", flags=("--nproc_per_node", "2", "--max_restarts", "1"))
    assert job.finish()[0] == 0


def test_ports_never_meet(start_job):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", 29500))
        taken.listen()
        jobs = [start_job("ok") for _ in range(3)]
        assert [job.finish(60)[0] for job in jobs] == [0, 0, 0]
    ports = {job.seen(rank)["MASTER_PORT"] for job in jobs for rank in (0, 1)}
    assert len(ports) == 3
    assert {job.seen(0)["MASTER_ADDR"] for job in jobs} == {"127.0.0.1"}


def test_a_port_that_the_user_chose_and_that_is_taken(start_job):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = start_job("ok", flags=("--nproc_per_node", "2", "--master_port", str(port)))
        code, lines = job.finish()
    assert code == 1
    assert str(port) in "\n".join(lines[2:])
    assert lines[2].startswith(f"trl: the launcher on {HOST} failed")
    assert "Traceback (most recent call last):" not in lines


@pytest.mark.parametrize("launcher", ["environment", "torchrun"])
def test_no_second_set_of_processes(start_job, launcher, tmp_path):
    """Under a launcher, each process of it is one worker: the same process."""
    if launcher == "environment":
        job = start_job("ok", flags=("--nproc_per_node", "4"), env={"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
        assert job.finish()[0] == 0
        assert job.seen(0)["pid"] == job.process.pid
        assert job.seen(0)["TRL_JOB_ID"] is None  # its launcher looks after it
        return
    folder = tmp_path / "under"
    folder.mkdir()
    driver = os.path.join(os.path.dirname(__file__), "driver.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", driver]
    subprocess.run([*command, "--nproc_per_node", "2", "--", str(folder), "ok"], check=True, timeout=60)
    assert sorted(os.listdir(folder)) == ["rank0", "rank1"]


def test_in_place(start_job):
    job = start_job("ok", flags=())
    assert job.finish() == (0, [])
    assert job.seen(0)["pid"] == job.process.pid
    assert job.seen(0)["OMP_NUM_THREADS"] is None


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_in_place_nothing_is_left(start_job, signum):
    job = start_job("child", flags=())
    job.wait_for_processes(2)
    job.signal(signum)
    code, lines = job.finish(30)
    assert code == (128 + signum if signum == signal.SIGINT else -signum)
    assert lines == []
    assert job.leftovers(seconds=5) == []


def test_in_place_failures(start_job):
    code, lines = start_job("raise:a unique text", flags=()).finish()
    assert code == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-3:-1] == [f"trl: rank 0 of 1 on {HOST} failed", "ValueError: a unique text"]
    assert start_job("mistake:bad row", flags=()).finish() == (2, ["trl: bad row", "  fix: mend it"])


def failure(local_rank, exitcode=1, when=100, kind="", message="", user_error=False):
    data = {}
    if kind:
        record = FailureRecord(local_rank, 4, "h", kind, message, "f.py:1 in g", when, user_error, "Traceback")
        data = {"message": {"message": "", "extraInfo": {"trl": record.__dict__}}}
    return SimpleNamespace(
        local_rank=local_rank,
        exitcode=exitcode,
        error_file_data=data,
        timestamp=int(when),
        pid=7,
        signal_name=lambda: signal.Signals(-exitcode).name,
    )


LOST = "[gloo] Connection closed by peer"


@pytest.mark.parametrize(
    ("failures", "dead_first", "expected"),
    [
        # the earlier of two exceptions in the same second
        ([failure(0, when=100.9, kind="KeyError"), failure(1, when=100.2, kind="ValueError")], {0, 1}, 1),
        # a peer that lost the connection wrote its file first
        (
            [failure(0, when=100.1, kind="RuntimeError", message=LOST), failure(1, when=100.5, kind="KeyError")],
            {0, 1},
            1,
        ),
        # a process that was killed has no file, and is seen later
        ([failure(0, when=100.1, kind="RuntimeError", message=LOST), failure(1, -9, when=101)], {0, 1}, 1),
        ([failure(0, when=100.1, kind="DistBackendError"), failure(1, -9, when=101)], {0, 1}, 1),
        # an exception that is not about a connection comes before a death
        ([failure(0, when=100.1, kind="MemoryError"), failure(1, -6, when=101)], {0, 1}, 0),
        # NCCL aborts the processes that lost a peer
        ([failure(0, -6, when=100), failure(1, -9, when=101)], {0, 1}, 1),
        # ended by the agent, with a file written on the way out
        ([failure(0, -15, when=99, kind="KeyError"), failure(1, 3, when=101)], {1}, 1),
        ([failure(0, -9, when=99), failure(1, when=101, kind="ValueError")], {1}, 1),
        # it raised, and was still on its way out when a peer that lost the connection to it had ended
        (
            [failure(0, -15, when=99, kind="OSError"), failure(1, when=101, kind="RuntimeError", message=LOST)],
            {1},
            0,
        ),
        # nothing known about who ended first
        ([failure(0, when=101, kind="KeyError"), failure(1, when=100, kind="ValueError")], set(), 1),
    ],
)
def test_first_failure(failures, dead_first, expected):
    by_rank = {item.local_rank: item for item in failures}
    rank, item = first_failure(by_rank, dead_first)
    assert rank == expected
    assert item is by_rank[expected]


def test_exit_codes():
    assert exit_code(failure(0, 1), None) == 1
    assert exit_code(failure(0, -9), None) == 137
    record = FailureRecord(0, 1, "h", "DataError", "m", "w", 0.0, True, "")
    assert exit_code(failure(0, 1), record) == 2


@pytest.mark.parametrize(
    ("signum", "word"), [("SIGSEGV", "crashed"), ("SIGKILL", "memory"), ("SIGUSR1", "another program")]
)
def test_words_for_signals(signum, word):
    lines = describe_failure(3, failure(3, -getattr(signal, signum)), None, [])
    assert lines[0] == f"trl: rank 3 on {HOST} (process 7) was killed by {signum}"
    assert word in "\n".join(lines[1:])
