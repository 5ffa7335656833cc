"""Packing: every token exactly once, no row too long, the same plan every time, and known plans by hand."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset, IterableDataset

from trl.data.packing import pack, pack_dataset, plan_packing
from trl.errors import ConfigError


def _row(first: int, n: int) -> dict[str, list[int]]:
    ids = list(range(first, first + n))
    return {"input_ids": ids, "labels": [-i for i in ids]}


def _rows(lengths: list[int]) -> list[dict[str, list[int]]]:
    """Rows whose tokens are all different, so that a token says where it comes from."""
    starts = np.cumsum([0, *lengths])
    return [_row(int(s), n) for s, n in zip(starts, lengths)]


def _ids(packed: list[dict]) -> list[list[int]]:
    return [row["input_ids"] for row in packed]


def test_bfd_puts_each_document_into_the_fullest_row_with_room() -> None:
    # Sorted: 6, 5, 4, 3, 2. 6 and 5 open rows (room 2 and 3), 4 opens a third (room 4); 3 goes to the row with
    # room 3, not to the one with 4; 2 to the one with 2.
    packed = pack(_rows([2, 3, 4, 5, 6]), 8, "bfd")
    assert [row["seq_lengths"] for row in packed] == [[6, 2], [5, 3], [4]]
    assert _ids(packed)[0] == [14, 15, 16, 17, 18, 19, 0, 1]
    assert packed[0]["labels"] == [-14, -15, -16, -17, -18, -19, 0, -1]


def test_bfd_truncates_and_bfd_split_cuts_long_documents() -> None:
    rows = _rows([7, 1])
    assert _ids(pack(rows, 3, "bfd")) == [[0, 1, 2], [7]]
    split = pack(rows, 3, "bfd_split")
    assert _ids(split) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [row["seq_lengths"] for row in split] == [[3], [3], [1, 1]]


def test_wrapped_cuts_the_stream_and_keeps_borders() -> None:
    packed = pack(_rows([3, 0, 2, 4]), 4, "wrapped")
    assert _ids(packed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [row["seq_lengths"] for row in packed] == [[3, 1], [1, 3], [1]]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("seed", range(8))
def test_invariants_on_random_documents(strategy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    max_length = int(rng.integers(1, 40))
    longest = max_length if strategy == "bfd" else 100
    lengths = rng.integers(0, longest + 1, size=int(rng.integers(1, 120))).tolist()
    rows = _rows(lengths)
    packed = pack(rows, max_length, strategy)

    tokens = [token for row in packed for token in row["input_ids"]]
    assert sorted(tokens) == list(range(sum(lengths)))
    assert all(0 < len(row["input_ids"]) <= max_length for row in packed)
    assert all(len(row["input_ids"]) == row["length"] == sum(row["seq_lengths"]) for row in packed)
    assert all(row["labels"] == [-t for t in row["input_ids"]] for row in packed)
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    for row in packed:
        ids, start = row["input_ids"], 0
        for n in row["seq_lengths"]:
            piece = ids[start : start + n]
            assert piece == list(range(piece[0], piece[0] + n)), "a piece is a run of one document"
            assert document_of[piece[0]] == document_of[piece[-1]]
            start += n
    assert pack(rows, max_length, strategy) == packed
    if strategy != "wrapped":  # best fit never leaves two rows that would fit into one
        sizes = sorted(row["length"] for row in packed)
        assert len(sizes) < 2 or sizes[0] + sizes[1] > max_length


def test_plan_of_many_documents_is_dense() -> None:
    lengths = np.random.default_rng(0).integers(1, 2049, size=20_000)
    plan = plan_packing(lengths, 2048, "bfd")
    assert plan.length.sum() == lengths.sum()
    assert len(plan) <= 1.01 * lengths.sum() / 2048


def test_no_rows() -> None:
    assert pack([], 4) == []
    for strategy in ("bfd", "bfd_split", "wrapped"):
        assert len(plan_packing([], 4, strategy)) == 0
        assert len(plan_packing([0, 0], 4, strategy)) == 0


def test_unknown_strategy_and_impossible_length() -> None:
    with pytest.raises(ConfigError, match="'ffd'"):
        plan_packing([1], 4, "ffd")
    with pytest.raises(ConfigError, match="0 tokens"):
        plan_packing([1], 0)


def test_pack_dataset_packs_what_has_one_entry_per_token() -> None:
    rows = [row | {"name": name, "tags": ["x"]} for row, name in zip(_rows([2, 3, 4]), "abc")]
    packed = pack_dataset(Dataset.from_list(rows), 6, "bfd")
    assert packed["input_ids"][:] == [[5, 6, 7, 8, 0, 1], [2, 3, 4]]
    assert packed["seq_lengths"][:] == [[4, 2], [3]]
    assert packed["name"][:] == ["c", "b"]
    assert packed["tags"][:] == [["x"], ["x"]]


def test_pack_dataset_sees_the_rows_of_a_selection() -> None:
    chosen = Dataset.from_list(_rows([2, 3, 4])).select([2, 0])
    assert pack_dataset(chosen, 6, "bfd")["input_ids"][:] == [[5, 6, 7, 8, 0, 1]]


def test_pack_dataset_of_a_stream_packs_batch_by_batch() -> None:
    stream = IterableDataset.from_generator(lambda: iter(_rows([2, 3, 4, 1])))
    packed = list(pack_dataset(stream, 6, "bfd", {"batch_size": 2}))
    assert _ids(packed) == [[2, 3, 4, 0, 1], [5, 6, 7, 8, 9]]


def test_pack_dataset_of_splits() -> None:
    from datasets import DatasetDict

    packed = pack_dataset(DatasetDict(train=Dataset.from_list(_rows([2, 3])), test=Dataset.from_list(_rows([1]))), 5)
    assert {name: part.num_rows for name, part in packed.items()} == {"train": 1, "test": 1}
