"""Several documents to a row, so that little of a batch is padding.

A plan is made from the lengths alone; it says which tokens of which document go where. Applying it copies tokens
between Arrow buffers. Strategies:

    bfd        best-fit decreasing: the longest document first, each into the fullest row that still has room.
               A document longer than a row keeps its first `max_length` tokens.
    bfd_split  the same, but a longer document is first cut into pieces of `max_length`.
    wrapped    all documents one after another, cut every `max_length` tokens.

Wherever a document is cut, the pieces are documents of their own: none sees another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from datasets import Dataset

from trl.errors import ConfigError

Strategy = Literal["bfd", "bfd_split", "wrapped"]

BATCH_TOKENS = 1 << 24
"""Packed rows are made this many tokens at a time: bounds the memory of the copies and fits Arrow's 32-bit borders."""


@dataclass(frozen=True)
class PackPlan:
    """Where every token goes.

    `row`, `start`, `length`: int64 [S], the S pieces in packed order: `length` tokens of document `row` from token
    `start` on. `bins`: int64 [R + 1], packed row r is made of the pieces bins[r] to bins[r + 1].
    """

    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    bins: np.ndarray

    def __len__(self) -> int:
        return len(self.bins) - 1


def plan_packing(lengths: Sequence[int] | np.ndarray, max_length: int, strategy: Strategy = "bfd") -> PackPlan:
    """Plan rows of at most `max_length` tokens from documents of the given lengths. Deterministic.

    Empty documents are left out.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if strategy not in get_args(Strategy):
        raise ConfigError(f"packing strategy {strategy!r} is unknown", fix=f"use one of {get_args(Strategy)}")
    if max_length < 1:
        raise ConfigError(f"rows of {max_length} tokens cannot be packed", fix="set max_length to 1 or more")
    if strategy == "wrapped":
        return _wrap(sizes, max_length)
    if strategy == "bfd_split":
        row, start, size = _pieces(sizes, max_length)
    else:
        row = np.flatnonzero(sizes)
        start, size = np.zeros_like(row), np.minimum(sizes[row], max_length)
    order, bins = _best_fit_decreasing(size, max_length)
    return PackPlan(row[order], start[order], size[order], bins)


def _pieces(sizes: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut every document into pieces of `max_length` and a rest."""
    counts = -(-sizes // max_length)
    row = np.repeat(np.arange(len(sizes)), counts)
    index = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)  # which piece of its document
    start = index * max_length
    return row, start, np.minimum(sizes[row] - start, max_length)


def _wrap(sizes: np.ndarray, max_length: int) -> PackPlan:
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(0, total, max_length)
    # Every cut and every document's start begins a piece (an empty document starts where the next one does).
    begins = np.unique(np.concatenate([cuts, (ends - sizes)[sizes > 0]]))
    row = np.searchsorted(ends, begins, side="right")
    length = np.diff(np.append(begins, total))
    bins = np.append(np.searchsorted(begins, cuts), len(begins))
    return PackPlan(row, begins - (ends - sizes)[row], length, bins)


def _best_fit_decreasing(sizes: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Order of the pieces and borders of the rows.

    `open_rows[s]` holds the rows with s tokens of room and bit s of `rooms` says whether there are any. The fullest
    row with room for n is the lowest set bit from n on: a shift and a bit trick on one long integer, which costs
    max_length / 64 machine words a piece.
    """
    order = np.argsort(-sizes, kind="stable")
    open_rows: list[list[int]] = [[] for _ in range(max_length + 1)]
    rooms, rows = 0, 0
    row_of_piece = np.empty(len(sizes), dtype=np.int64)
    for position, size in enumerate(sizes[order].tolist()):
        candidates = rooms >> size
        if candidates:
            room = size + (candidates & -candidates).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row, rows = max_length, rows, rows + 1
        row_of_piece[position] = row
        left = room - size
        if left:
            if not open_rows[left]:
                rooms ^= 1 << left
            open_rows[left].append(row)
    by_row = np.argsort(row_of_piece, kind="stable")
    bins = np.searchsorted(row_of_piece[by_row], np.arange(rows + 1))
    return order[by_row], bins


def apply_plan(table: pa.Table, plan: PackPlan) -> Iterator[pa.Table]:
    """Yield the packed rows, some at a time, with `seq_lengths` (the documents' lengths).

    Lists with one entry per token are packed; of any other column a row keeps its first document's value.
    `length` is recomputed.
    """
    starts, lengths = _list_borders(table["input_ids"])
    per_token = {
        name: _flat_values(table[name])
        for name in table.column_names
        if _is_list(table[name].type) and np.array_equal(_list_borders(table[name])[1], lengths)
    }
    others = [name for name in table.column_names if name not in (*per_token, "length", "seq_lengths")]
    bins = plan.bins
    while len(bins) > 1:
        # as many rows as hold BATCH_TOKENS, at least one
        tokens = np.cumsum(np.add.reduceat(plan.length, bins[:-1]))
        taken = max(1, int(np.searchsorted(tokens, BATCH_TOKENS, side="right")))
        now, bins = bins[: taken + 1], bins[taken:]
        pieces = slice(now[0], now[-1])
        row, length = plan.row[pieces], plan.length[pieces]
        source = _ranges(starts[row] + plan.start[pieces], length)
        borders = np.concatenate([[0], np.cumsum(length)])[now - now[0]]
        packed = {name: _lists(borders, values[source]) for name, values in per_token.items()}
        for name in others:
            packed[name] = table[name].take(pa.array(plan.row[now[:-1]])).combine_chunks()
        packed["length"] = pa.array(np.diff(borders), pa.int32())
        packed["seq_lengths"] = _lists(now - now[0], length.astype(np.int32))
        yield pa.table(packed)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _list_borders(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Where each row's values start in the column's flat values, and how many there are."""
    counts = [chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    lengths = np.concatenate([np.empty(0, dtype=np.int64), *counts]).astype(np.int64)
    return np.cumsum(lengths) - lengths, lengths


def _flat_values(column: pa.ChunkedArray) -> np.ndarray:
    chunks = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, dtype=np.int32), *chunks])


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[start, start + 1, ...] of every piece, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def _lists(borders: np.ndarray, values: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(borders, pa.int32()), pa.array(values))


def pack(rows: Sequence[Mapping[str, Any]], max_length: int, strategy: Strategy = "bfd") -> list[dict[str, Any]]:
    """Pack rows with `input_ids` and `labels` (and any other list with one entry per token); adds `seq_lengths`."""
    if not rows:
        return []
    table = pa.Table.from_pylist([dict(row) for row in rows])
    plan = plan_packing([len(row["input_ids"]) for row in rows], max_length, strategy)
    return [row for batch in apply_plan(table, plan) for row in batch.to_pylist()]


def pack_dataset(
    dataset: Any, seq_length: int, strategy: Strategy = "bfd", map_kwargs: dict[str, Any] | None = None
) -> Any:
    """Pack a tokenised data set into rows of at most `seq_length` tokens, with a `seq_lengths` column.

    Args:
        dataset: a `Dataset`, an `IterableDataset` (packed batch by batch) or a dictionary of them, with
            `input_ids` and other columns that have one entry per token.
        seq_length: the most tokens a row may have.
        strategy: "bfd", "bfd_split" or "wrapped".
        map_kwargs: further arguments for the `map` of an `IterableDataset` (`batch_size`: how many rows are packed
            together, 1000 unless given).
    """
    if isinstance(dataset, dict):
        return type(dataset)({k: pack_dataset(part, seq_length, strategy, map_kwargs) for k, part in dataset.items()})
    if isinstance(dataset, Dataset):
        if not len(dataset):
            return dataset
        table = dataset.with_format("arrow")[:]
        plan = plan_packing(_list_borders(table["input_ids"])[1], seq_length, strategy)
        return Dataset(pa.concat_tables(apply_plan(table, plan)))
    return dataset.map(
        _pack_columns,
        batched=True,
        remove_columns=list(next(iter(dataset.take(1)), {})),
        fn_kwargs={"max_length": seq_length, "strategy": strategy},
        **(map_kwargs or {}),
    )


def _pack_columns(columns: Mapping[str, list[Any]], max_length: int, strategy: Strategy) -> dict[str, list[Any]]:
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    plan = plan_packing(_list_borders(table["input_ids"])[1], max_length, strategy)
    return pa.concat_tables(apply_plan(table, plan)).to_pydict()
