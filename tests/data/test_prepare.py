"""Preparing: once per file system, whatever happens to the processes that do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from tests.data.files import write_rows
from tests.fixtures.tiny import tiny_tokenizer
from trl.data import prepare as prepare_module
from trl.data.prepare import PrepareOptions, default_cache_dir, prepare
from trl.data.sources import load_dataset_source
from trl.errors import ConfigError, DataError

TOK = tiny_tokenizer()
ROOT = Path(__file__).parents[2]


def _text(n: int) -> Dataset:
    return Dataset.from_dict({"text": [f"The answer is {i}." for i in range(n)], "id": list(range(n))})


def _prepare(dataset: Dataset, cache: Path, log: list[str] | None = None, **options: Any) -> Dataset:
    num_proc = options.pop("num_proc", None)
    lines: list[str] = [] if log is None else log
    opts = PrepareOptions(**options)
    return prepare(dataset, TOK, opts, source="a.jsonl", num_proc=num_proc, cache_dir=cache, log=lines.append)


def _folders(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "prepared").iterdir() if p.suffix != ".lock")


# ---------------------------------------------------------------------------------------------------------- content


@pytest.mark.parametrize("num_proc", [None, 2])
def test_token_rows(tmp_path: Path, num_proc: int | None) -> None:
    rows = _prepare(_text(50), tmp_path, num_proc=num_proc)
    assert rows.column_names == ["input_ids", "labels", "length", "row"]
    assert TOK.batch_decode(rows["input_ids"][:]) == [f"The answer is {i}.<|im_end|>" for i in range(50)]
    assert rows["labels"][:] == rows["input_ids"][:]
    assert rows["length"][:] == [len(ids) for ids in rows["input_ids"]]
    assert rows["row"][:] == list(range(50))
    assert str(rows.features["input_ids"].feature.dtype) == "int32"


def test_workers_give_the_same_rows(tmp_path: Path) -> None:
    one = _prepare(_text(300), tmp_path / "1")
    two = _prepare(_text(300), tmp_path / "2", num_proc=2)
    assert one[:] == two[:]


def test_workers_do_not_use_the_tokenizers_threads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    TOK(["a"] * 100)  # threads have been used, which the library complains about after a fork
    seen = _prepare(_text(60), tmp_path, num_proc=2, formatting_func=lambda _: os.environ["TOKENIZERS_PARALLELISM"])
    assert set(TOK.batch_decode(seen["input_ids"][:])) == {"false<|im_end|>"}
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    assert "forked" not in capfd.readouterr().err


def test_rows_without_anything_to_learn_are_counted_and_left_out(tmp_path: Path) -> None:
    data = Dataset.from_list(
        [{"prompt": "The answer" * (9 if i % 3 == 0 else 1), "completion": " is 42"} for i in range(9)]
    )
    log: list[str] = []
    rows = _prepare(data, tmp_path, log, max_length=8)
    assert rows["row"][:] == [1, 2, 4, 5, 7, 8]
    warning = "3 of 9 rows have no supervised token after truncation to max_length=8"
    assert sum(warning in line for line in log) == 1
    again: list[str] = []
    _prepare(data, tmp_path, again, max_length=8)
    assert again == log, "a run that reuses the cache says it as well"


def test_no_row_with_anything_to_learn_is_an_error(tmp_path: Path) -> None:
    data = Dataset.from_list([{"prompt": "The answer " * 9, "completion": "is 42"}] * 4)
    with pytest.raises(DataError, match="none of the 4 rows has a token to learn") as caught:
        _prepare(data, tmp_path, max_length=8)
    assert "max_length=8" in caught.value.why
    assert _folders(tmp_path) == []


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl has no rows"):
        _prepare(_text(3).select([]), tmp_path)


def test_prompts_that_merge_are_said_once(tmp_path: Path) -> None:
    log: list[str] = []
    _prepare(Dataset.from_list([{"prompt": "What ", "completion": "is the sum"}] * 5), tmp_path, log)
    assert sum("in 5 of 5 rows white space merges" in line for line in log) == 1


def test_tokenised_rows(tmp_path: Path) -> None:
    rows = _prepare(Dataset.from_list([{"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1]}]), tmp_path)
    assert rows["labels"][:] == [[-100, 6, 7]]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packing(tmp_path: Path, strategy: str) -> None:
    log: list[str] = []
    data = Dataset.from_list([{"input_ids": list(range(10 * n, 10 * n + n))} for n in (2, 3, 9, 4)])
    rows = _prepare(data, tmp_path, log, max_length=6, packing=strategy)
    assert rows.column_names == ["input_ids", "labels", "row", "length", "seq_lengths"]
    expected = {
        "bfd": [[90, 91, 92, 93, 94, 95], [40, 41, 42, 43, 20, 21], [30, 31, 32]],
        "bfd_split": [[90, 91, 92, 93, 94, 95], [40, 41, 42, 43, 20, 21], [30, 31, 32, 96, 97, 98]],
        "wrapped": [[20, 21, 30, 31, 32, 90], [91, 92, 93, 94, 95, 96], [97, 98, 40, 41, 42, 43]],
    }
    assert rows["input_ids"][:] == expected[strategy]
    assert rows["labels"][:] == expected[strategy]
    assert [sum(lengths) for lengths in rows["seq_lengths"]] == rows["length"][:]
    assert any("packed 4 rows into 3 of 6 tokens" in line for line in log)
    assert any("1 of 4 rows were truncated" in line for line in log) == (strategy == "bfd")


def test_packing_leaves_no_spool(tmp_path: Path) -> None:
    _prepare(_text(300), tmp_path, max_length=64, packing="bfd", num_proc=2)
    [name] = _folders(tmp_path)
    assert {p.name for p in (tmp_path / "prepared" / name).iterdir()} == {"rows.arrow", "prepared.json"}


def test_packed_rows_that_all_lack_something_to_learn(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of the 2 rows"):
        _prepare(Dataset.from_list([{"input_ids": [5, 6], "labels": [-100, -100]}] * 2), tmp_path, packing="bfd")


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(prepare_module.FileLock, "acquire", no_locks)
    with pytest.raises(DataError, match="cannot be written") as caught:
        _prepare(_text(3), tmp_path)
    assert caught.value.why == "its file system has no file locks"


def test_packing_needs_a_length() -> None:
    with pytest.raises(ConfigError, match="set max_length"):
        PrepareOptions(max_length=None, packing="bfd")


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("num_proc", [None, 2])
def test_a_bad_row_is_named_and_nothing_stays_behind(tmp_path: Path, num_proc: int | None) -> None:
    # a number among texts: the loader keeps it, and only the worker that comes to the row sees it
    path = write_rows(tmp_path / "a.jsonl", [{"text": 5 if i == 77 else "fine"} for i in range(100)])
    with pytest.raises(
        DataError, match=r"/a\.jsonl, row 77 \(counted from 0\), column 'text': is of type int, not text"
    ):
        _prepare(load_dataset_source(path), tmp_path / "cache", num_proc=num_proc)
    assert _folders(tmp_path / "cache") == []
    assert _children() == []


def test_a_data_set_without_a_usable_column_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _prepare(Dataset.from_dict({"story": ["a"], "id": [1]}), tmp_path)
    assert "'story', 'id'" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "prepared").write_text("in the way")
    with pytest.raises(DataError, match=r"prepared data cannot be written to .*prepared") as caught:
        _prepare(_text(3), tmp_path)
    assert "TRL_CACHE" in caught.value.fix


def test_a_killed_worker_is_an_error_that_names_memory(tmp_path: Path) -> None:
    def die(row: dict[str, Any]) -> str:
        if row["id"] == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return row["text"]

    with pytest.raises(DataError, match="was killed") as caught:
        _prepare(_text(60), tmp_path, num_proc=2, formatting_func=die)
    assert "memory" in caught.value.why
    assert _folders(tmp_path) == []


def _children() -> list[int]:
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in pids if "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]]


# ------------------------------------------------------------------------------------------------------------- reuse


def _counting(file: Path) -> Any:
    """A formatting_func that leaves a byte in a side file whenever it is called."""

    def write(row: dict[str, Any]) -> str:
        with open(str(file), "ab") as out:
            out.write(b"x")
        return row["text"]

    file.touch()
    return write


def test_the_second_time_nothing_is_done(tmp_path: Path) -> None:
    function = _counting(tmp_path / "calls")
    one = _prepare(_text(40), tmp_path, formatting_func=function)
    two = _prepare(_text(40), tmp_path, formatting_func=function, num_proc=2)
    assert (tmp_path / "calls").stat().st_size == 40
    assert one[:] == two[:]
    assert one._fingerprint == two._fingerprint == _folders(tmp_path)[0]


def test_a_cache_for_each_way_of_preparing(tmp_path: Path) -> None:
    data = Dataset.from_list([{"prompt": "The answer", "completion": " is 42"}] * 3)
    ways: list[dict[str, Any]] = [
        {},
        {"max_length": 5},
        {"max_length": 5, "truncation_mode": "keep_end"},
        {"completion_only_loss": False},
        {"packing": "bfd"},
        {"packing": "wrapped"},
        {"formatting_func": lambda row: row["prompt"]},
        {"formatting_func": lambda row: row["completion"]},
    ]
    for n, way in enumerate(ways, start=1):
        _prepare(data, tmp_path, **way)
        assert len(_folders(tmp_path)) == n
    tok = tiny_tokenizer(chat_template="{{ messages }}")
    prepare(data, tok, PrepareOptions(), source="a.jsonl", cache_dir=tmp_path, log=lambda _: None)
    _prepare(data.select([0]), tmp_path)
    assert len(_folders(tmp_path)) == len(ways) + 2


def test_columns_that_do_not_matter_do_not_matter(tmp_path: Path) -> None:
    _prepare(_text(5), tmp_path)
    _prepare(_text(5).remove_columns("id").add_column("other", list("abcde")), tmp_path)
    assert len(_folders(tmp_path)) == 1


def test_what_a_dead_builder_left_is_removed(tmp_path: Path) -> None:
    _prepare(_text(5), tmp_path)
    [name] = _folders(tmp_path)
    whole = tmp_path / "prepared" / name
    left_over = whole.with_name(f"{name}.tmp-dead")
    whole.rename(left_over)
    rows = _prepare(_text(5), tmp_path)
    assert _folders(tmp_path) == [name]
    assert len(rows) == 5


def test_a_function_without_a_stable_hash_is_prepared_privately(tmp_path: Path) -> None:
    lock = threading.Lock()
    log: list[str] = []

    def write(row: dict[str, Any]) -> str:
        with lock:
            return row["text"]

    rows = _prepare(_text(5), tmp_path, log, formatting_func=write)
    assert len(rows) == 5
    assert "cannot be recognised from one process to the next" in log[0]
    assert not (tmp_path / "prepared").exists()


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_CACHE", "/a")
    monkeypatch.setenv("HF_HOME", "/b")
    assert default_cache_dir() == Path("/a")
    monkeypatch.delenv("TRL_CACHE")
    assert default_cache_dir() == Path("/b/trl")
    monkeypatch.delenv("HF_HOME")
    assert default_cache_dir() == Path.home() / ".cache/trl"


def test_lines_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module._Progress, "SECONDS", 0.0)
    log: list[str] = []
    _prepare(_text(40), tmp_path, log)
    assert log[0].startswith("preparing a.jsonl: 10 of 40 rows, ")
    assert log[-1].startswith("preparing a.jsonl: 40 of 40 rows, ")


def test_a_bar_where_there_is_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_module._Progress, "SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    log: list[str] = []
    _prepare(_text(40), tmp_path, log)
    assert log == []
    assert "preparing a.jsonl" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- processes of their own

SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from datasets import Dataset
from tests.data.files import write_rows
from tests.fixtures.tiny import tiny_tokenizer
from trl.data import prepare as module
module.WAIT_SECONDS = 0.5
folder, num_proc = Path(sys.argv[1]), int(sys.argv[2])

def slowly(row):
    with open(folder / "calls", "ab") as out:
        out.write(b"x")
    time.sleep(float(os.environ["PAUSE"]))
    return row["text"]

data = Dataset.from_dict({{"text": [f"The answer is {{i}}." for i in range(40)]}})
options = module.PrepareOptions(formatting_func=slowly)
print("ready", flush=True)
rows = module.prepare(data, tiny_tokenizer(), options, source="x", num_proc=num_proc, cache_dir=folder / "cache",
                      log=lambda line: print(line, flush=True))
print("done", rows._fingerprint, len(rows), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start a process that prepares 40 rows, each taking `pause` seconds."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(root=str(ROOT))))
    (tmp_path / "calls").touch()

    def run(pause: float, num_proc: int = 1) -> subprocess.Popen[str]:
        env = os.environ | {"HF_HUB_OFFLINE": "1", "PAUSE": str(pause), "PYTHONHASHSEED": str(len(started))}
        command = [sys.executable, str(script), str(tmp_path), str(num_proc)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def _calls(tmp_path: Path) -> int:
    return (tmp_path / "calls").stat().st_size


def _until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.02)


def test_two_processes_at_once_do_the_work_once(tmp_path: Path, start: Any) -> None:
    both = [start(0.05), start(0.05, num_proc=2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert _calls(tmp_path) == 40
    assert outputs[0][-1] == outputs[1][-1], "the same fingerprint in both"
    assert sum("waiting for another process to prepare the data" in line for lines in outputs for line in lines) >= 1

    third = start(0.0)
    assert third.communicate(timeout=60)[0].splitlines()[-1] == outputs[0][-1]
    assert _calls(tmp_path) == 40, "a later launch maps nothing"


@pytest.mark.parametrize("num_proc", [1, 2])
def test_a_killed_builder_leaves_nothing_that_counts_as_complete(tmp_path: Path, start: Any, num_proc: int) -> None:
    builder = start(0.1, num_proc)
    _until(lambda: _calls(tmp_path) >= 5)
    [child_pids] = [Path(f"/proc/{builder.pid}/task/{builder.pid}/children").read_text().split()]
    waiter = start(0.0)
    builder.kill()
    builder.wait()
    assert "done" in waiter.communicate(timeout=60)[0]
    assert _calls(tmp_path) > 40
    [name] = _folders(tmp_path / "cache")
    assert json.loads((tmp_path / "cache/prepared" / name / "prepared.json").read_text())["rows"] == 40
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in child_pids))


# ------------------------------------------------------------------------------------------------- DatasetDict helper


def test_splits_are_prepared_one_by_one(tmp_path: Path) -> None:
    splits = DatasetDict(train=_text(4), test=_text(2))
    assert {name: len(_prepare(part, tmp_path)) for name, part in splits.items()} == {"train": 4, "test": 2}
