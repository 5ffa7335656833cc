"""What a failing process writes and prints, alone, under torchrun and under our agent."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from trl.errors import DataError
from trl.launch.failure import make_record, read_record, record_failures, report_lines, write_record

HOST = socket.gethostname()
WORKER = """
import sys, time
from trl.errors import DataError
from trl.launch.failure import record_failures
def work():
    {action}
with record_failures():
    work()
print("went on")
"""
SCRIPT = """
import sys
from trl.errors import DataError
from trl.launch.failure import install_excepthook
install_excepthook()
install_excepthook()
def work():
    {action}
work()
print("went on")
"""
RANK_1 = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} | {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}
RANK_0 = {**RANK_1, "RANK": "0", "LOCAL_RANK": "0"}


def run(source, action, tmp_path, **env):
    path = tmp_path / "job.py"
    path.write_text(source.format(action=action))
    error_file = tmp_path / "error.json"
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(error_file), **env}
    result = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True, timeout=30)
    data = json.loads(error_file.read_text()) if error_file.exists() else None
    return result.returncode, result.stdout, result.stderr.splitlines(), data, str(path)


@pytest.mark.parametrize("source", [WORKER, SCRIPT], ids=["worker", "script"])
def test_an_exception_alone(source, tmp_path):
    code, out, lines, data, path = run(source, 'raise KeyError("unique")', tmp_path)
    assert (code, out) == (1, "")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines.count("Traceback (most recent call last):") == 1
    where = f"  at {path}:{line_of_action(source)} in work"
    assert lines[-3:] == [f"trl: rank 0 of 1 on {HOST} failed", "KeyError: 'unique'", where]
    assert data["message"]["message"] == "KeyError: 'unique'"
    assert data["message"]["extraInfo"]["py_callstack"].startswith("Traceback")


def line_of_action(source):
    return next(index for index, line in enumerate(source.splitlines(), 1) if "{action}" in line)


@pytest.mark.parametrize("source", [WORKER, SCRIPT], ids=["worker", "script"])
def test_a_mistake_alone(source, tmp_path):
    code, out, lines, data, _ = run(source, 'raise DataError("bad row", "why", "fix it")', tmp_path)
    assert (code, out) == (2, "")
    assert lines == ["trl: bad row", "  why: why", "  fix: fix it"]
    assert data["message"]["extraInfo"]["py_callstack"] == "bad row\n  why: why\n  fix: fix it"


@pytest.mark.parametrize("source", [WORKER, SCRIPT], ids=["worker", "script"])
@pytest.mark.parametrize("action", ['raise KeyError("x")', 'raise DataError("x")'])
def test_under_our_agent_only_the_file_is_written(source, action, tmp_path):
    code, out, lines, data, _ = run(source, action, tmp_path, TRL_AGENT_PID=str(os.getpid()), **RANK_1)
    assert code == (2 if "DataError" in action else 1)
    assert (out, lines) == ("", [])
    record = read_record(data)
    assert (record.rank, record.world_size, record.host) == (1, 2, HOST)
    assert record.user_error == ("DataError" in action)


@pytest.mark.parametrize("source", [WORKER, SCRIPT], ids=["worker", "script"])
def test_under_torchrun_rank_0_has_the_word(source, tmp_path):
    action = 'raise DataError("bad row")'
    assert run(source, action, tmp_path, **RANK_0)[2] == ["trl: bad row", f"  (rank 0 of 2 on {HOST})"]
    begin = time.monotonic()
    assert run(source, action, tmp_path, **RANK_1)[2] == ["trl: bad row", f"  (rank 1 of 2 on {HOST})"]
    assert time.monotonic() - begin > 1


def test_interrupts_and_exits_pass(tmp_path):
    assert run(WORKER, "raise KeyboardInterrupt", tmp_path)[:4] == (130, "", [], None)
    assert run(WORKER, "sys.exit(5)", tmp_path)[:4] == (5, "", [], None)
    assert run(WORKER, "pass", tmp_path)[:4] == (0, "went on\n", [], None)


def test_a_failed_rank_does_not_linger(tmp_path):
    """An exit handler that waits for ever, as one that waits for peers may."""
    action = "import atexit; atexit.register(time.sleep, 60); raise KeyError(1)"
    begin = time.monotonic()
    code, _, _, data, _ = run(WORKER, action, tmp_path, TRL_AGENT_PID=str(os.getpid()), **RANK_1)
    assert code != 0
    assert data is not None
    assert time.monotonic() - begin < 10


def test_torch_reads_the_file(tmp_path):
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    with pytest.raises(SystemExit), record_failures():
        raise ValueError("text")
    path = tmp_path / "error.json"
    try:
        raise DataError("bad", fix="mend")
    except DataError as error:
        record = make_record(error)
    write_record(record, str(path))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(path))
    assert failure.message["message"] == "DataError: bad\n  fix: mend"
    assert read_record(failure.error_file_data) == record
    assert [entry.name for entry in tmp_path.iterdir()] == ["error.json"]


def test_files_of_others_hold_no_record():
    assert read_record("<NONE>") is None
    assert read_record({"message": "text"}) is None
    assert read_record({"message": {"message": "m", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}) is None


def test_where_skips_libraries():
    try:
        json.loads("{")
    except ValueError as error:
        record = make_record(error)
    assert record.where.startswith(f"{__file__}:")
    assert record.where.endswith(" in test_where_skips_libraries")


def test_a_message_of_several_lines_and_none():
    assert report_lines(record_of(ValueError("a\nb")))[1:3] == ["ValueError: a", "b"]
    assert report_lines(record_of(ValueError()))[1] == "ValueError: (no message)"


def record_of(error):
    try:
        raise error
    except ValueError as caught:
        return make_record(caught)
