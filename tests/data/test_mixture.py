"""Mixtures of data sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import IterableDataset

from tests.data.files import write_rows
from trl.data.mixture import DatasetConfig, DatasetMixtureConfig, get_dataset, mix_datasets
from trl.errors import ConfigError, DataError


def _numbers(path: Path, first: int, n: int) -> str:
    return write_rows(path, [{"text": f"t{i}", "id": i} for i in range(first, first + n)])


def test_a_mixture(tmp_path: Path) -> None:
    one, two = _numbers(tmp_path / "one.jsonl", 0, 4), _numbers(tmp_path / "two.csv", 10, 10)
    mixture = DatasetMixtureConfig(
        datasets=[{"path": one, "columns": ["text"]}, {"path": two, "fraction": 0.3}]  # type: ignore[list-item]
    )
    assert mixture.datasets[0] == DatasetConfig(path=one, columns=["text"])
    assert list(mix_datasets(mixture)) == [
        *({"text": f"t{i}", "id": None} for i in range(4)),
        *({"text": f"t{i}", "id": i} for i in (13, 16, 19)),
    ]


def test_a_mixture_of_streams_alternates_and_loses_nothing(tmp_path: Path) -> None:
    one, two = _numbers(tmp_path / "one.jsonl", 0, 2), _numbers(tmp_path / "two.jsonl", 10, 8)
    entries = [DatasetConfig(one), DatasetConfig(two, fraction=0.5)]
    splits = get_dataset(DatasetMixtureConfig(datasets=entries, streaming=True))
    assert isinstance(splits["train"], IterableDataset)
    assert [row["id"] for row in splits["train"]] == [0, 11, 1, 13, 15, 17]


def test_the_test_split_is_the_same_every_time(tmp_path: Path) -> None:
    path = _numbers(tmp_path / "one.jsonl", 0, 20)
    splits = [get_dataset(DatasetMixtureConfig([DatasetConfig(path)], test_split_size=0.25)) for _ in range(2)]
    assert splits[0]["test"]["id"][:] == splits[1]["test"]["id"][:]
    assert sorted(splits[0]["train"]["id"][:] + splits[0]["test"]["id"][:]) == list(range(20))
    assert len(splits[0]["test"]) == 5
    assert set(get_dataset(DatasetMixtureConfig([DatasetConfig(path)]))) == {"train"}


def test_files_by_kind(tmp_path: Path) -> None:
    _numbers(tmp_path / "x1.jsonl", 0, 2)
    _numbers(tmp_path / "x2.jsonl", 2, 2)
    (tmp_path / "lines.txt").write_text("a\nb\n")
    pattern = DatasetConfig("json", data_files=str(tmp_path / "x*.jsonl"))
    listed = DatasetConfig("json", data_files=[str(tmp_path / "x2.jsonl"), str(tmp_path / "x1.jsonl")])
    lines = DatasetConfig("text", data_files=str(tmp_path / "lines.txt"))
    folder = DatasetConfig("json", data_dir=str(tmp_path), data_files="x1.jsonl")
    ids = [[row["id"] for row in mix_datasets(DatasetMixtureConfig([e]))] for e in (pattern, listed, folder)]
    assert ids == [[0, 1, 2, 3], [2, 3, 0, 1], [0, 1]]
    assert [row["text"] for row in mix_datasets(DatasetMixtureConfig([lines]))] == ["a", "b"]
    with pytest.raises(DataError, match=r"there is no file .*y\*\.jsonl"):
        mix_datasets(DatasetMixtureConfig([DatasetConfig("json", data_files=str(tmp_path / "y*.jsonl"))]))


def test_mixtures_that_cannot_be(tmp_path: Path) -> None:
    one = _numbers(tmp_path / "one.jsonl", 0, 2)
    two = write_rows(tmp_path / "two.jsonl", [{"text": ["a"], "id": 1}])
    with pytest.raises(DataError, match="do not fit together") as caught:
        mix_datasets(DatasetMixtureConfig([DatasetConfig(one), DatasetConfig(two)]))
    assert caught.value.why.startswith("column 'text' is Value('string') in ")
    with pytest.raises(DataError, match=r"one\.jsonl has no column 'txt'") as caught:
        mix_datasets(DatasetMixtureConfig([DatasetConfig(one, columns=["txt"])]))
    assert "'text', 'id'" in caught.value.why
    with pytest.raises(ConfigError, match="unknown key 'colums'") as refused:
        DatasetMixtureConfig(datasets=[{"path": one, "colums": []}])  # type: ignore[list-item]
    assert refused.value.fix == "did you mean 'columns'?"
    with pytest.raises(ConfigError, match="has no 'path'"):
        DatasetMixtureConfig(datasets=[{"name": "a"}])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="has no data sets"):
        mix_datasets(DatasetMixtureConfig())
    with pytest.raises(ConfigError, match="a stream does not know"):
        DatasetMixtureConfig([DatasetConfig(one)], streaming=True, test_split_size=0.1)
    with pytest.raises(ConfigError, match=r"fraction 1\.5"):
        DatasetConfig(one, fraction=1.5)
