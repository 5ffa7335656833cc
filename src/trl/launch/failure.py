"""What a process that fails leaves behind: a record for the agent, or the last lines on the screen."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from trl.errors import TrlError
from trl.launch.environment import agent_reports, guess_process_info

INTERRUPTED = 128 + signal.SIGINT
# Seconds a failed process of a larger job has to end by itself. Its peers notice its death, not its exception, and
# exit handlers may wait for those very peers.
_SECONDS_TO_EXIT = 5
_RECORD_KEY = "trl"
_PACKAGE = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True)
class FailureRecord:
    """An exception that ended a process.

    Attributes:
        rank, world_size, host: the process.
        type: name of the exception.
        message: its text.
        where: `file:line in function` of the innermost frame that is not of an installed library.
        time: seconds since 1970, to the microsecond: who failed first.
        user_error: whether it is a `TrlError`, so a mistake that the user can mend.
        traceback: as Python prints it.
    """

    rank: int
    world_size: int
    host: str
    type: str
    message: str
    where: str
    time: float
    user_error: bool
    traceback: str

    @property
    def label(self) -> str:
        return f"rank {self.rank} of {self.world_size} on {self.host}"

    @property
    def exit_code(self) -> int:
        return TrlError.exit_code if self.user_error else 1


def make_record(error: BaseException) -> FailureRecord:
    """Describe an exception that was caught in this process."""
    info = guess_process_info()
    return FailureRecord(
        rank=info.rank,
        world_size=info.world_size,
        host=info.host,
        type=type(error).__name__,
        message=str(error),
        where=_where(error.__traceback__),
        time=time.time(),
        user_error=isinstance(error, TrlError),
        traceback="".join(traceback.format_exception(error)),
    )


def write_record(record: FailureRecord, path: str | None = None) -> None:
    """Write the file in which torchrun looks for the error of a worker; without such a file, do nothing.

    The file has torch's format, so that plain torchrun shows it too, and holds our record beside it.
    """
    path = path or os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    shown = record.message if record.user_error else record.traceback
    extra: dict[str, Any] = {"py_callstack": shown, "timestamp": str(int(record.time)), _RECORD_KEY: asdict(record)}
    text = json.dumps({"message": {"message": f"{record.type}: {record.message}", "extraInfo": extra}})
    temporary = f"{path}.{os.getpid()}"
    try:
        # Renamed into place, because torch fails on half a file, and this process may be killed while it writes.
        Path(temporary).write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        print(f"trl: the error could not be written to {path}: {error}", file=sys.stderr)


def read_record(data: Any) -> FailureRecord | None:
    """The record in what torch read from an error file; None if another program wrote it."""
    try:
        return FailureRecord(**data["message"]["extraInfo"][_RECORD_KEY])
    except (KeyError, TypeError):
        return None


def report_lines(record: FailureRecord) -> list[str]:
    """The last lines on the screen for an exception: which process, what, where."""
    if record.user_error:
        lines = [f"trl: {record.message}"]
        return lines if record.world_size == 1 else [*lines, f"  ({record.label})"]
    text = record.message.strip() or "(no message)"
    return [f"trl: {record.label} failed", *f"{record.type}: {text}".splitlines(), f"  at {record.where}"]


@contextlib.contextmanager
def record_failures() -> Iterator[None]:
    """Run the body of a worker; turn what it raises into a record and an exit code.

    A `TrlError` ends with exit code 2 and its text alone, Ctrl-C with 130 and nothing, any other exception with 1 and
    its traceback. Where an agent of ours started this process, the agent prints all of it, once, when every
    process has ended.

    Raises:
        SystemExit: in place of any exception of the body.
    """
    with contextlib.suppress(Exception):  # there may be no real stderr
        faulthandler.enable()
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        record = make_record(error)
        write_record(record)
        if not record.user_error and not agent_reports():
            sys.stderr.write(record.traceback)
        _print_last_lines(record)
        _limit_exit_time(record)
        raise SystemExit(record.exit_code) from None


def install_excepthook() -> None:
    """Do the same as `record_failures` for a script of the user's that does not call it; calling it twice is fine."""
    previous = sys.excepthook
    if getattr(previous, "records_failures", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, Exception):
            previous(kind, error, trace)
            return
        record = make_record(error.with_traceback(trace))
        write_record(record)
        if not record.user_error and not agent_reports():
            previous(kind, error, trace)
        _print_last_lines(record)
        _limit_exit_time(record)
        if record.user_error:
            sys.exit(record.exit_code)

    hook.records_failures = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _print_last_lines(record: FailureRecord) -> None:
    if agent_reports():
        return
    local_rank = guess_process_info().local_rank
    if record.user_error and local_rank > 0:
        # Most mistakes are found by every process alike. Leave the word to local rank 0: if it failed as well, the
        # launcher ends this process within the second.
        time.sleep(1.0)
    sys.stdout.flush()
    print("\n".join(report_lines(record)), file=sys.stderr, flush=True)


def _limit_exit_time(record: FailureRecord) -> None:
    if record.world_size == 1:
        return
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS_TO_EXIT)


def _where(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)
    if not frames:
        return "(unknown)"
    own = [frame for frame in frames if _is_own(frame.filename)]
    frame = (own or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


def _is_own(filename: str) -> bool:
    if filename.startswith(_PACKAGE):
        return True
    library = os.path.dirname(os.__file__)
    return not (filename.startswith((library, "<frozen")) or "site-packages" in filename)
