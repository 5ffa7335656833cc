"""Faults that are seen before anything is tokenised."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset

from tests.fixtures.tiny import tiny_tokenizer
from trl.data import prepare as prepare_module
from trl.data.early import check_early
from trl.data.formats import Where
from trl.data.prepare import PrepareOptions, prepare
from trl.data.sources import load_dataset_source
from trl.errors import DataError

USER = {"role": "user", "content": "Hi"}
N = 25_000
_at = partial(Where, "a.jsonl")


def _with(fine: Any, odd: Any, row: int = N - 7) -> list[Any]:
    values = [fine] * N
    values[row] = odd
    return values


@pytest.mark.parametrize(
    ("columns", "column", "problem"),
    [
        ({"text": _with("a", None)}, "text", "is null"),
        ({"prompt": ["a"] * N, "completion": _with("b", None)}, "completion", "is null"),
        ({"messages": _with([USER], [])}, "messages", "empty list"),
        ({"messages": _with([USER], None)}, "messages", "is null"),
        ({"messages": _with([USER], [USER, {"role": None, "content": "a"}])}, "messages", "'role' is None"),
        ({"messages": _with([USER], [USER, {"role": "user"}])}, "messages", "'content' is null"),
        ({"conversations": _with([{"from": "a", "value": "b"}], [{"from": "a"}])}, "conversations", "is null"),
        ({"input_ids": _with([1], [])}, "input_ids", "is empty"),
    ],
)
def test_faults(columns: dict[str, list[Any]], column: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        check_early(Dataset.from_dict(columns), _at, "text")
    assert caught.value.what.startswith(f"a.jsonl, row {N - 7} (counted from 0), column {column!r}: ")
    assert problem in caught.value.what


def test_the_first_fault_is_named_and_selections_are_followed() -> None:
    data = Dataset.from_dict({"text": _with("a", None)}).select([5, N - 7, 6, N - 7])
    with pytest.raises(DataError, match="row 1 "):
        check_early(data, _at, "text")


def test_nulls_that_are_allowed() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    check_early(Dataset.from_dict({"text": ["a", None], "messages": [None, [USER, call]]}), _at, "text")
    check_early(Dataset.from_dict({"text": ["a", None]}), _at, None)
    check_early(Dataset.from_dict({"text": ["a", "b"], "tools": [None, []]}), _at, "text")


def test_invalid_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "text": "a"}\n{"id": 2, "text": "\xff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, row 1 \(counted from 0\), column 'text': is not valid UTF-8"):
        check_early(load_dataset_source(str(tmp_path / "a.jsonl")), _at, "text")
    nested = pa.array([[b"a"], [b"b", b"\xff"]], pa.list_(pa.binary())).cast(pa.list_(pa.binary()))
    broken = pa.ListArray.from_arrays(nested.offsets, pa.StringArray.from_buffers(3, *nested.values.buffers()[1:]))
    with pytest.raises(DataError, match=r"row 1 .*column 'parts': is not valid UTF-8"):
        check_early(Dataset(pa.table({"parts": broken})), _at, None)


def test_invalid_utf8_far_down() -> None:
    data = np.frombuffer(b"a" * (N - 1) + b"\xff", dtype=np.uint8)
    borders = pa.array(range(N + 1), pa.int32())
    text = pa.StringArray.from_buffers(N, borders.buffers()[1], pa.py_buffer(data.tobytes()))
    with pytest.raises(DataError, match=f"row {N - 1} .*column 'text': is not valid UTF-8"):
        check_early(Dataset(pa.table({"text": text})), _at, "text")


def test_nothing_is_tokenised_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("tokenised")

    monkeypatch.setattr(prepare_module, "tokenize_rows", never)
    data = Dataset.from_dict({"text": _with("a", None)})
    with pytest.raises(DataError, match=f"row {N - 7} "):
        prepare(data, tiny_tokenizer(), PrepareOptions(), source="x", cache_dir=tmp_path, log=lambda _: None)
