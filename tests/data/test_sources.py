"""Files, folders and mixtures; and what is said about broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from tests.data.files import ROWS, write_rows
from trl.data import sources
from trl.data.sources import load_dataset_dict, load_dataset_source
from trl.errors import DataError


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "odd [1]*.jsonl"])
def test_a_file(tmp_path: Path, name: str, streaming: bool) -> None:
    data = load_dataset_source(write_rows(tmp_path / name), streaming=streaming)
    assert isinstance(data, IterableDataset if streaming else Dataset)
    assert list(data) == ROWS


def test_slices(tmp_path: Path) -> None:
    assert list(load_dataset_source(write_rows(tmp_path / "a.jsonl"), split="train[:1]")) == ROWS[:1]


def test_a_folder_without_split_names_is_all_training_data(tmp_path: Path) -> None:
    write_rows(tmp_path / "part-1.jsonl")
    write_rows(tmp_path / "part-2.jsonl", [{"text": "c", "id": 3}])
    (tmp_path / "README.md").write_text("not data")
    assert load_dataset_source(str(tmp_path))["text"][:] == ["a", "b", "c"]


def test_a_folder_with_split_names(tmp_path: Path) -> None:
    write_rows(tmp_path / "train-00000-of-00002.jsonl")
    write_rows(tmp_path / "train-00001-of-00002.jsonl", [{"text": "c", "id": 3}])
    write_rows(tmp_path / "test.jsonl", [{"text": "t", "id": 4}])
    write_rows(tmp_path / "val.jsonl", [{"text": "v", "id": 5}])
    write_rows(tmp_path / "extra.jsonl", [{"text": "e", "id": 6}])
    found = {
        split: load_dataset_source(str(tmp_path), split=split)["text"][:]
        for split in ("train", "test", "validation", "val", "extra")
    }
    assert found == {"train": ["a", "b", "c"], "test": ["t"], "validation": ["v"], "val": ["v"], "extra": ["e"]}


def test_files_that_only_begin_like_a_split(tmp_path: Path) -> None:
    write_rows(tmp_path / "trainee.jsonl")
    write_rows(tmp_path / "test.jsonl", [{"text": "t", "id": 4}])
    assert load_dataset_source(str(tmp_path))["text"][:] == ["a", "b"]
    write_rows(tmp_path / "train.jsonl", [{"text": "c", "id": 3}])
    assert load_dataset_source(str(tmp_path))["text"][:] == ["c"]


@pytest.mark.parametrize("streaming", [False, True])
def test_saved_data_sets(tmp_path: Path, streaming: bool) -> None:
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:1])).save_to_disk(str(tmp_path / "two"))
    assert list(load_dataset_source(str(tmp_path / "one"), streaming=streaming)) == ROWS
    assert list(load_dataset_source(str(tmp_path / "two"), split="test", streaming=streaming)) == ROWS[:1]
    with pytest.raises(DataError, match="has no split 'dev'") as caught:
        load_dataset_source(str(tmp_path / "two"), split="dev")
    assert "'train', 'test'" in caught.value.fix
    with pytest.raises(DataError, match="has no split 'test'"):
        load_dataset_source(str(tmp_path / "one"), split="test")


def test_train_and_test(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl")
    assert set(load_dataset_dict(str(tmp_path))) == {"train"}
    write_rows(tmp_path / "test.jsonl", ROWS[:1])
    both = load_dataset_dict(str(tmp_path))
    assert {name: len(list(part)) for name, part in both.items()} == {"train": 2, "test": 1}
    assert set(load_dataset_dict(str(tmp_path), test_split=None)) == {"train"}
    assert set(load_dataset_dict(str(tmp_path / "train.jsonl"))) == {"train"}


def test_a_broken_test_split_is_not_a_missing_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl")
    (tmp_path / "test.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"test\.jsonl, line 1: broken JSON"):
        load_dataset_dict(str(tmp_path))


# ---------------------------------------------------------------------------------------------------- broken files


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\n{"text": "c"}\n', "a.jsonl, line 2: broken JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"}}\n', "a.jsonl, line 3: broken JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1, 2]\n', "a.jsonl, line 2: is a list, not an object"),
        ("a.jsonl", b"5\n6\n", "a.jsonl, line 1: is a number, not an object"),
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b"\n \n", "a.jsonl has no rows"),
        ("a.json", b'[{"text": "a"},\n{"text": "b"]', "a.json, line 2: broken JSON"),
        ("a.json", b'[{"text": "a"}, 5]', "a.json, row 1 (counted from 0): is a number, not an object"),
        ("a.json", b"[]", "a.json has no rows"),
        ("a.csv", b"text,id\na,1\nb,2,3,4\n", "a.csv, line 3: has 4 fields, the header has 2"),
        ("a.csv", b"text,id\na,1\nb\xff,2\n", "a.csv, line 3: not valid UTF-8"),
        ("a.parquet", b"nonsense", "a.parquet is not a whole Parquet file"),
        ("a.txt", b"text", "a.txt is of no kind that can be read"),
    ],
)
def test_a_broken_file_names_file_and_line(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    for streaming in (False, True):
        with pytest.raises(DataError) as caught:
            load_dataset_source(str(tmp_path / name), streaming=streaming)
        assert caught.value.what == f"{tmp_path}/{problem}"


def test_the_broken_one_of_several_files(tmp_path: Path) -> None:
    for i in range(3):
        write_rows(tmp_path / f"part-{i}.jsonl")
    with (tmp_path / "part-1.jsonl").open("ab") as file:
        file.write(b'{"text": "\xc3"\n')
    with pytest.raises(DataError, match=r"part-1\.jsonl, line 3: not valid UTF-8") as caught:
        load_dataset_source(str(tmp_path))
    assert "byte 0xc3 at position 11" in caught.value.why


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    path = Path(write_rows(tmp_path / "a.parquet", ROWS * 1000))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a\.parquet is not a whole Parquet file"):
        load_dataset_source(str(path))


def test_a_column_whose_type_changes_is_found() -> None:
    from trl.data.scan import _odd_column

    types: dict[str, tuple[str, int]] = {}
    assert _odd_column({"text": "a", "id": None}, 1, types, "line") is None
    assert _odd_column({"text": 5}, 2, types, "line") == "column 'text': is a number; it was text in line 1"


def test_what_is_not_there(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"there is no file .*trian\.jsonl") as caught:
        load_dataset_source(str(tmp_path / "trian.jsonl"))
    assert caught.value.fix == f"did you mean {tmp_path}/train.jsonl?"
    with pytest.raises(DataError, match="there is no file") as caught:
        load_dataset_source(str(tmp_path / "none" / "train.jsonl"))
    assert "the folder" in caught.value.why
    with pytest.raises(DataError, match="has no split 'test'") as caught:
        load_dataset_source(str(tmp_path), split="test")
    assert caught.value.fix == "the splits found are 'train'"
    with pytest.raises(DataError, match="has no split 'test'"):
        load_dataset_source(str(tmp_path / "train.jsonl"), split="test")
    with pytest.raises(DataError, match="has no configuration 'en'"):
        load_dataset_source(str(tmp_path / "train.jsonl"), config="en")


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no file that can be read"):
        load_dataset_source(str(tmp_path))
    write_rows(tmp_path / "a.jsonl")
    write_rows(tmp_path / "b.csv")
    with pytest.raises(DataError, match=r"of different kinds \(csv, json\)"):
        load_dataset_source(str(tmp_path))


def test_a_hub_name_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="'owner/nmae' is no file or folder here") as caught:
        load_dataset_source("owner/nmae")
    assert "HF_HUB_OFFLINE" in caught.value.why

    def unknown(*_: Any) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DataError, match="'nmae' is no file or folder here") as caught:
        load_dataset_source("nmae")
    assert caught.value.why == "the hub cannot be reached: huggingface.co: Name or service not known"


def test_a_hub_name_that_the_hub_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(message: str) -> Any:
        def load(*_: Any, **__: Any) -> None:
            raise ValueError(message)

        return load

    monkeypatch.setattr(sources, "_require_hub", lambda _: None)
    monkeypatch.setattr(
        "datasets.load_dataset", fails("Dataset 'a/b' doesn't exist on the Hub\nor cannot be accessed")
    )
    with pytest.raises(DataError, match="the data set 'a/b' cannot be loaded") as caught:
        load_dataset_source("a/b")
    assert "doesn't exist on the Hub" in caught.value.why
    assert "\n" not in caught.value.why
    monkeypatch.setattr("datasets.load_dataset", fails("Unknown split \"dev\". Should be one of ['train', 'test']."))
    with pytest.raises(DataError, match="a/b has no split 'dev'") as caught:
        load_dataset_source("a/b", split="dev")
    assert caught.value.fix == "the splits found are 'train', 'test'"


@pytest.mark.parametrize("terminal", [False, True])
def test_bars_only_on_a_terminal_and_settings_are_put_back(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    import datasets

    datasets.enable_progress_bars()
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.INFO)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    try:
        with sources.quiet():
            assert datasets.are_progress_bars_disabled() is not terminal
            assert datasets.logging.get_verbosity() == datasets.logging.CRITICAL
        assert not datasets.are_progress_bars_disabled()
        assert datasets.logging.get_verbosity() == datasets.logging.INFO
    finally:
        datasets.logging.set_verbosity(level)
