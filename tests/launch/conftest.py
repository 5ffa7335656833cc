"""Jobs of stub workers, started as `trl` starts real ones, and removed whatever happens."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trl.launch.guard import end_job, job_processes

DRIVER = Path(__file__).with_name("driver.py")


def until(condition, seconds=20.0):
    """Wait for a condition; return its value, which is false if it never came."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


class Job:
    """A running job."""

    def __init__(self, folder: Path, flags: list[str], actions: list[str], env: dict[str, str]):
        folder.mkdir()
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), *flags, "--", str(folder), *actions],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | env,
            start_new_session=True,
        )
        self.started = time.monotonic()

    def seen(self, rank: int) -> dict:
        return json.loads((self.folder / f"rank{rank}").read_text())

    def wait_for_ranks(self, count: int) -> None:
        assert until(lambda: all((self.folder / f"rank{rank}").exists() for rank in range(count))), self.kill()

    def wait_for_processes(self, count: int) -> None:
        """Until the workers and what they start are there."""
        self.wait_for_ranks(1)
        assert until(lambda: len(job_processes(self.job_id)) == count), self.kill()

    def signal(self, signum: signal.Signals) -> float:
        self.process.send_signal(signum)
        return time.monotonic()

    def finish(self, seconds: float = 30) -> tuple[int, list[str]]:
        """Exit code and lines on the screen, when the job has ended and nobody holds its output any more."""
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output.rstrip().splitlines()

    def leftovers(self, seconds: float = 0.0) -> list[int]:
        """Processes of the job that are there although it has ended, or the given time after it."""
        until(lambda: not job_processes(self.job_id), seconds)
        return job_processes(self.job_id)

    @property
    def job_id(self) -> str:
        return self.seen(0)["TRL_JOB_ID"]

    def kill(self) -> str:
        self.process.kill()
        for path in self.folder.glob("rank?"):
            end_job(json.loads(path.read_text())["TRL_JOB_ID"])
        return self.process.communicate()[0]


@pytest.fixture
def start_job(tmp_path):
    jobs: list[Job] = []

    def start(
        *actions: str, flags: tuple[str, ...] = ("--nproc_per_node", "2"), env: dict[str, str] | None = None
    ) -> Job:
        jobs.append(Job(tmp_path / f"job{len(jobs)}", list(flags), list(actions), env or {}))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.stdout and not job.process.stdout.closed:
            job.kill()
