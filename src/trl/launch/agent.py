"""This process as torchrun's agent: it starts the workers, watches them, and has the last word.

torch does the work. Added are a shorter wait for workers that do not end, removal of processes that outlive
their worker, and a report that names the first failure as the last lines on the screen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from trl.errors import LaunchError, TrlError
from trl.launch.environment import AGENT_VARIABLE, JOB_VARIABLE
from trl.launch.failure import FailureRecord, read_record, report_lines
from trl.launch.guard import end_job

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

# Seconds between the signal that ends the workers and SIGKILL, unless --shutdown_timeout says otherwise.
GRACE = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass
class _Watch:
    """What is known about the end of the workers that torch does not pass on."""

    job_id: str
    grace: int
    group: Any = None  # the workers, of the latest restart
    dead_first: set[int] = field(default_factory=set)  # local ranks of this group that ended by themselves


def run_agent(torchrun: Sequence[str], worker: Sequence[str], job_id: str) -> int:
    """Start the workers, wait for them, and report.

    Args:
        torchrun: flags for torchrun.
        worker: name of the module to run, then its arguments.
        job_id: mark of the job's processes.

    Returns:
        The exit code: 0, 2 for a mistake that the user can mend, 128 + number of the signal that ended the job, or
        the exit code of the worker that failed first.
    """
    os.environ[JOB_VARIABLE] = job_id
    os.environ[AGENT_VARIABLE] = str(os.getpid())
    logs = tempfile.mkdtemp(prefix="trl-")

    def exit_at_once(signum: int, frame: FrameType | None) -> NoReturn:
        # torch sets its own handlers just before it starts the workers, so there are none yet. Raising would not do:
        # an import or a destructor may swallow what is raised in it.
        shutil.rmtree(logs, ignore_errors=True)
        code, lines = _stopped(signal.Signals(signum))
        _print_last(lines)
        os._exit(code)

    for signum in _handled_signals():
        signal.signal(signum, exit_at_once)
    try:
        code, lines = _run(torchrun, worker, job_id, logs)
    finally:
        end_job(job_id, grace=1.0)
        shutil.rmtree(logs, ignore_errors=True)
    _print_last(lines)
    return code


def _run(torchrun: Sequence[str], worker: Sequence[str], job_id: str, logs: str) -> tuple[int, list[str]]:
    from torch.distributed import run as torch_run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    endpoint = ""
    try:
        args = _parse(torch_run.get_args_parser(), torchrun, worker)
        args.log_dir = args.log_dir or logs
        endpoint = args.rdzv_endpoint
        watch = _Watch(job_id, args.shutdown_timeout)
        with _watching(watch):
            torch_run.run(args)
        return 0, []
    except ChildFailedError as error:
        return _failed(error, watch)
    except SignalException as stop:
        return _stopped(stop.sigval)
    except TrlError as error:
        return error.exit_code, [f"trl: {error}"]
    except Exception as error:
        return 1, _could_not_start(error, endpoint)


def _parse(parser: ArgumentParser, torchrun: Sequence[str], worker: Sequence[str]) -> Namespace:
    parser.error = _bad_flags  # type: ignore[method-assign]
    args = parser.parse_args([*torchrun, "-m", *worker])
    if args.shutdown_timeout is None:
        args.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", GRACE))
    if args.signals_to_handle == parser.get_default("signals_to_handle"):
        args.signals_to_handle = ",".join(signum.name for signum in _handled_signals())
    return args


def _handled_signals() -> list[signal.Signals]:
    """Signals that end the job; not SIGHUP under `nohup`, which means to outlive the terminal."""
    return [signum for signum in _SIGNALS if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN]


def _bad_flags(message: str) -> NoReturn:
    raise LaunchError(f"torchrun refuses its flags: {message}")


@contextlib.contextmanager
def _watching(watch: _Watch) -> Iterator[None]:
    """While torch runs the job, end its workers in the time we allow, and note which had ended by themselves.

    torch waits 30 seconds for the peers of a failed worker, whatever --shutdown_timeout says, and does not pass on
    which workers it ended itself. Both are decided in `PContext.close`, which is therefore wrapped.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    close = PContext.close

    def close_in_time(context: Any, death_sig: signal.Signals | None = None, timeout: int = watch.grace) -> None:
        if context is not watch.group:
            handlers = context.subprocess_handlers.items()
            watch.group = context
            watch.dead_first = {local_rank for local_rank, handler in handlers if handler.proc.poll() is not None}
        if death_sig == signal.SIGINT:
            # Python sees an interrupt only between two instructions, so a worker that waits in a collective would
            # not end, and every other one would print a traceback.
            death_sig = signal.SIGTERM
        _limit_logs(logging.CRITICAL)
        previous = {signum: signal.signal(signum, kill_at_once) for signum in _handled_signals()}
        try:
            close(context, death_sig, min(timeout, watch.grace))
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def kill_at_once(signum: int, frame: FrameType | None) -> None:
        end_job(watch.job_id)

    _limit_logs(logging.ERROR)
    PContext.close = close_in_time  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        # Only this process is left to be asked to stop, and it is stopping.
        for signum in _handled_signals():
            signal.signal(signum, signal.SIG_IGN)
        PContext.close = close  # type: ignore[method-assign]


def _limit_logs(level: int) -> None:
    """Keep what torch says about workers that it ends off the screen. Who sets LOGLEVEL wants to see it."""
    if "LOGLEVEL" not in os.environ:
        for handler in logging.getLogger("torch.distributed").handlers:
            handler.setLevel(level)


def _print_last(lines: Sequence[str]) -> None:
    if lines:
        sys.stdout.flush()
        print("\n".join(lines), file=sys.stderr, flush=True)


def _stopped(sigval: signal.Signals) -> tuple[int, list[str]]:
    return 128 + sigval, [f"trl: stopped by {sigval.name}; all processes of the job have ended"]


def _failed(error: ChildFailedError, watch: _Watch) -> tuple[int, list[str]]:
    dead_first = watch.dead_first
    rank, failure = first_failure(error.failures, dead_first)
    record = read_record(failure.error_file_data)
    others = sorted(
        other for other in error.failures if other != rank and error.failures[other].local_rank in dead_first
    )
    return exit_code(failure, record), describe_failure(rank, failure, record, others)


def first_failure(failures: dict[int, ProcessFailure], dead_first: set[int]) -> tuple[int, ProcessFailure]:
    """The failure that made all others.

    Args:
        failures: {rank: failure} of this node.
        dead_first: local ranks that had ended before the agent ended the rest.

    Returns:
        Its rank and the failure. Of the workers that ended by themselves, it is the one whose exception came first.
        A process that was killed leaves no exception, and its peers raise because the connection to it broke:
        so it comes before them, and after every exception that is not about a connection.
    """
    own = {rank: failure for rank, failure in failures.items() if failure.local_rank in dead_first} or failures
    if all(_lost_a_peer(failure) for failure in own.values()):
        # The peer that they lost raised first, and was still on its way out when they had already ended.
        own = own | {rank: failure for rank, failure in failures.items() if _raised_by_itself(failure)}

    def order(item: tuple[int, ProcessFailure]) -> tuple[int, float, int]:
        rank, failure = item
        record = read_record(failure.error_file_data)
        if record is not None:
            return (3 if _is_about_a_peer(record) else 0), record.time, rank
        # An abort is how NCCL's watchdog ends a process that lost its peer.
        return (2 if failure.exitcode == -signal.SIGABRT else 1), float(failure.timestamp), rank

    return min(own.items(), key=order)


def _raised_by_itself(failure: ProcessFailure) -> bool:
    record = read_record(failure.error_file_data)
    return record is not None and not _is_about_a_peer(record)


def _lost_a_peer(failure: ProcessFailure) -> bool:
    record = read_record(failure.error_file_data)
    return record is not None and _is_about_a_peer(record)


def _is_about_a_peer(record: FailureRecord) -> bool:
    """Whether an exception is what a process raises when another one of the job has gone."""
    if record.type in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    words = ("connection", "peer", "socket", "nccl", "gloo", "broken pipe", "timed out")
    kinds = ("RuntimeError", "ConnectionError", "ConnectionResetError", "BrokenPipeError")
    return record.type in kinds and any(word in record.message.lower() for word in words)


def exit_code(failure: ProcessFailure, record: FailureRecord | None) -> int:
    """The exit code of the job whose first failure is given."""
    if record is not None and record.user_error:
        return TrlError.exit_code
    return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode


def describe_failure(
    rank: int, failure: ProcessFailure, record: FailureRecord | None, others: Sequence[int]
) -> list[str]:
    """The traceback, if there is one, and the last lines on the screen."""
    if record is not None:
        lines = report_lines(record)
        if others:
            lines.append(f"  failed after it: rank {', '.join(map(str, others))}")
        return lines if record.user_error else [*record.traceback.rstrip().splitlines(), "", *lines]
    process = f"rank {rank} on {socket.gethostname()} (process {failure.pid})"
    if failure.exitcode >= 0:
        return [f"trl: {process} ended with exit code {failure.exitcode} and without an exception"]
    name = failure.signal_name()
    lines = [f"trl: {process} was killed by {name}"]
    if -failure.exitcode == signal.SIGKILL:
        lines += [
            "  why: nothing in the job sends this signal: most often the machine ran out of memory and the kernel",
            "       ended the largest process (`dmesg | grep -i oom` shows it), or a scheduler enforced its limit",
            "  fix: lower --per_device_train_batch_size, --max_length or --dataset_num_proc, or start fewer",
            "       processes; with --global_batch_size given, the training stays the same",
        ]
    elif -failure.exitcode in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE):
        lines += ["  why: native code crashed; above is where each thread of Python was, if it could be printed"]
    else:
        lines += ["  why: another program sent this signal"]
    return lines


def _could_not_start(error: Exception, endpoint: str) -> list[str]:
    """Errors of the agent itself: it could not meet the other nodes, open its port or start its workers."""
    place = f" (endpoint {endpoint})" if endpoint else ""
    text = str(error).strip() or "(no message)"
    return [f"trl: the launcher on {socket.gethostname()} failed{place}", f"{type(error).__name__}: {text}"]
