"""Token rows of a stream are those of the data set, made as they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset, IterableDataset

from tests.fixtures.tiny import tiny_tokenizer
from trl.data.prepare import PrepareOptions, prepare
from trl.data.stream import prepare_stream
from trl.errors import DataError

TOK = tiny_tokenizer()


def _stream(dataset: Any, log: list[str] | None = None, batch_size: int = 4, **options: Any) -> IterableDataset:
    lines: list[str] = [] if log is None else log
    opts = PrepareOptions(**options)
    return prepare_stream(dataset, TOK, opts, source="a.jsonl", batch_size=batch_size, log=lines.append)


DATA = Dataset.from_list([{"prompt": f"{i}+1=" * (1 + i % 3), "completion": f"{i + 1}", "id": i} for i in range(10)])


@pytest.mark.parametrize("options", [{}, {"max_length": 8}, {"completion_only_loss": False}])
def test_the_same_rows_as_from_the_data_set(tmp_path: Any, options: dict[str, Any]) -> None:
    expected = prepare(DATA, TOK, PrepareOptions(**options), source="x", cache_dir=tmp_path, log=lambda _: None)
    assert list(_stream(DATA.to_iterable_dataset(), **options)) == list(expected)


def test_a_generator_without_known_columns() -> None:
    stream = IterableDataset.from_generator(lambda: iter([{"text": "Yes."}, {"text": "No."}]))
    assert TOK.batch_decode([row["input_ids"] for row in _stream(stream)]) == ["Yes.<|im_end|>", "No.<|im_end|>"]


def test_packing_batch_by_batch() -> None:
    rows = [{"input_ids": list(range(10 * n, 10 * n + n))} for n in (2, 3, 4, 5)]
    packed = list(_stream(Dataset.from_list(rows).to_iterable_dataset(), batch_size=2, max_length=9, packing="bfd"))
    assert [row["input_ids"] for row in packed] == [
        [30, 31, 32, 20, 21],
        [50, 51, 52, 53, 54, 40, 41, 42, 43],
    ]
    assert [row["seq_lengths"] for row in packed] == [[3, 2], [5, 4]]
    assert [row["row"] for row in packed] == [1, 3]


def test_a_bad_row_raises_when_it_is_reached() -> None:
    data = Dataset.from_dict({"text": ["a b", "c d", "e f", None]}).to_iterable_dataset()
    rows = iter(_stream(data, batch_size=2))
    assert [next(rows)["row"], next(rows)["row"]] == [0, 1]
    with pytest.raises(DataError, match=r"a\.jsonl, row 3 \(counted from 0\), column 'text': is null"):
        next(rows)


def test_no_usable_column_and_no_rows_are_refused_at_once() -> None:
    with pytest.raises(DataError, match="no column that can be trained on"):
        _stream(Dataset.from_dict({"story": ["a"]}).to_iterable_dataset())
    with pytest.raises(DataError, match="has no rows"):
        _stream(IterableDataset.from_generator(lambda: iter([])))


def test_rows_without_anything_to_learn_are_counted() -> None:
    rows = [{"input_ids": [5, 6], "labels": [-100, 6 if i % 2 else -100]} for i in range(12)]
    log: list[str] = []
    assert [row["row"] for row in _stream(Dataset.from_list(rows).to_iterable_dataset(), log)] == [1, 3, 5, 7, 9, 11]
    assert [line.split(" rows")[0] for line in log] == ["warning: 2 of the first 4", "warning: 4 of the first 8"]


def test_a_stream_without_anything_to_learn_ends() -> None:
    def endless() -> Any:
        while True:
            yield {"input_ids": [5, 6], "labels": [-100, -100]}

    with pytest.raises(DataError, match="none of the first 1000 rows has a token to learn"):
        next(iter(_stream(IterableDataset.from_generator(endless))))
