"""Messages name the file that a row came from, whatever was done to the data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, concatenate_datasets

from tests.data.files import write_rows
from tests.fixtures.tiny import tiny_tokenizer
from trl.data.mixture import DatasetConfig, DatasetMixtureConfig, get_dataset, mix_datasets
from trl.data.origin import locator, origin, origin_name
from trl.data.prepare import PrepareOptions, prepare
from trl.data.sources import load_dataset_source
from trl.data.stream import prepare_stream
from trl.errors import DataError


def _file(path: Path, n: int) -> str:
    return write_rows(path, [{"text": f"{path.stem} {i}"} for i in range(n)])


def _agrees(dataset: Dataset) -> bool:
    """The text of a row says which file and row it is."""
    locate = locator(dataset, "given")
    places = [locate(i) for i in range(len(dataset))]
    return [f"{Path(at.source).stem} {at.row}" for at in places] == dataset["text"][:]


def test_rows_of_a_file(tmp_path: Path) -> None:
    name = _file(tmp_path / "a.jsonl", 9)
    data = load_dataset_source(name)
    assert origin(data) == [(name, 9)]
    assert _agrees(data)
    assert _agrees(data.shuffle(seed=1))
    assert _agrees(data.shuffle(seed=1).select([3, 1, 8]))
    assert _agrees(data.train_test_split(test_size=3, seed=0)["test"])
    assert _agrees(data.add_column("n", list(range(9))).select_columns(["text"]))


def test_rows_of_a_mixture(tmp_path: Path) -> None:
    entries = [DatasetConfig(_file(tmp_path / f"{name}.jsonl", n), fraction=f) for name, n, f in (("a", 4, None),)]
    entries += [DatasetConfig(_file(tmp_path / "b.csv", 10), fraction=0.3), DatasetConfig(entries[0].path)]
    mixed = mix_datasets(DatasetMixtureConfig(entries))
    assert isinstance(mixed, Dataset)
    assert len(mixed) == 11
    assert _agrees(mixed)
    assert _agrees(mixed.shuffle(seed=2))
    splits = get_dataset(DatasetMixtureConfig(entries, test_split_size=4))
    assert _agrees(splits["train"])
    assert _agrees(splits["test"])
    assert origin_name(mixed, "given") == f"{tmp_path}/a.jsonl + {tmp_path}/b.csv"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.select(range(3, 7)),
        lambda data: concatenate_datasets([data, data]),
        lambda data: data.map(lambda rows: {"text": rows["text"][::2]}, batched=True),
    ],
)
def test_rows_that_cannot_be_matched_count_as_they_are(tmp_path: Path, change: Any) -> None:
    name = _file(tmp_path / "a.jsonl", 9)
    place = locator(change(load_dataset_source(name)), "given")(2)
    assert (place.source, place.row) == (f"rows taken from {name}", 2)
    place = locator(load_dataset_source(name, split="train[4:]"), "given")(2)
    assert (place.source, place.row) == (f"rows taken from {name}", 2)


def test_data_sets_of_others() -> None:
    data = Dataset.from_dict({"text": ["a", "b"]})
    assert (locator(data, "given")(1).source, locator(data, "given")(1).row) == ("given", 1)
    data.info.description = "Somebody's words."
    assert origin_name(data, "given") == "given"
    for words in ("5", "[1, 2]", '{"a": 1}'):
        data.info.description = words
        assert origin_name(data, "given") == "given"


def test_a_file_without_a_usable_column_is_named(tmp_path: Path) -> None:
    data = load_dataset_source(write_rows(tmp_path / "a.jsonl", [{"story": "a"}]))
    with pytest.raises(DataError, match=r"/a\.jsonl, row 0"):
        prepare(data, tiny_tokenizer(), PrepareOptions(), source="train_dataset", log=lambda _: None)


def test_a_bad_row_of_a_shuffled_mixture_is_found_in_its_file(tmp_path: Path) -> None:
    one = _file(tmp_path / "one.jsonl", 20)
    two = write_rows(tmp_path / "two.jsonl", [{"text": None if i == 13 else "fine"} for i in range(20)])
    mixed = get_dataset(DatasetMixtureConfig([DatasetConfig(one), DatasetConfig(two)]))["train"].shuffle(seed=3)
    with pytest.raises(DataError, match=r"/two\.jsonl, row 13 \(counted from 0\), column 'text': is null"):
        prepare(mixed, tiny_tokenizer(), PrepareOptions(), source="train_dataset", log=lambda _: None)
    stream = load_dataset_source(two, streaming=True)
    with pytest.raises(DataError, match=r"/two\.jsonl, row 13 "):
        list(prepare_stream(stream, tiny_tokenizer(), PrepareOptions(), source="train_dataset", log=lambda _: None))
