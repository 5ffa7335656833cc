"""Microbatches of this rank, in the order of the contract.

A step's rows come from `layout.order`, their dealing from `layout.deal`; this file only turns row numbers into
batches. Every rank yields the same number of microbatches a step. Some may hold no row: they become a batch of weight
0, so that no collective is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ..layout.deal import deal, microbatch_of
from ..layout.order import Order
from ..layout.plan import BatchPlan
from ..layout.seeds import row_hash

Collate = Callable[[Sequence[dict[str, Any]]], dict[str, Any]]


class MicrobatchSampler(Sampler[list[int]]):
    """Row numbers of this rank's microbatches, epoch after epoch.

    Args:
        order: rows of each step.
        plan: how a step is cut.
        rank: data-parallel rank.
        lengths: rows -> their numbers of tokens.
        padded: whether a microbatch is padded to its longest row.
    """

    def __init__(
        self,
        order: Order,
        plan: BatchPlan,
        rank: int,
        lengths: Callable[[Sequence[int]], Sequence[int]],
        padded: bool,
    ):
        self.order, self.plan, self.rank, self.lengths, self.padded = order, plan, rank, lengths, padded
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.order.steps_per_epoch * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.order.steps_per_epoch):
            yield from self.step(self.epoch, step)

    def step(self, epoch: int, step: int) -> list[list[int]]:
        """This rank's microbatches of one step."""
        rows = self.order.step_rows(epoch, step)
        cuts = deal(rows, self.lengths(rows), self.plan, padded=self.padded)
        ranks = self.plan.data_ranks
        return [cuts[microbatch_of(self.rank, a, ranks)] for a in range(self.plan.accumulation)]


class StepLoader(DataLoader):
    """A DataLoader over `MicrobatchSampler`; its length counts microbatches of this rank."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class DealtStream(IterableDataset):
    """Microbatches of this rank from a source without length or index: rows are dealt by arrival number.

    Every process reads the same rows in the same order, so a step's rows are the same for any world; each skips what
    is not its own. A last step with fewer rows than G is yielded like any other.
    """

    def __init__(self, rows: Any, plan: BatchPlan, rank: int, collate: Collate, padded: bool):
        self.rows, self.plan, self.rank, self.padded = rows, plan, rank, padded
        self.collate = CountingCollate(collate)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        window: list[tuple[int, Any]] = []
        for numbered in enumerate(self.rows):
            window.append(numbered)
            if len(window) == self.plan.global_batch_size:
                yield from self._deal(window)
                window = []
        if window:
            yield from self._deal(window)

    def _deal(self, window: list[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
        cuts = deal(range(len(window)), [row_length(row) for _, row in window], self.plan, padded=self.padded)
        for a in range(self.plan.accumulation):
            cut = cuts[microbatch_of(self.rank, a, self.plan.data_ranks)]
            yield self.collate([window[i] for i in cut])


class StreamLoader(DataLoader):
    """A DataLoader over `DealtStream`, without a length."""

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]


class Numbered(Dataset):
    """Any dataset with `__getitem__`: number -> (number, row)."""

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.rows[number]


class CountingCollate:
    """A collator that notes which rows went into a batch and how many tokens they have.

    Adds `row_hash` (see `layout.seeds.row_hash`) and `tokens`, without padding, as int64 scalars.
    """

    def __init__(self, collate: Collate):
        self.collate = collate

    def __call__(self, numbered: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        rows = [row for _, row in numbered]
        batch = dict(self.collate(rows))
        batch["row_hash"] = torch.tensor(row_hash(number for number, _ in numbered))
        batch["tokens"] = torch.tensor(sum(map(row_length, rows)))
        return batch


def row_length(row: Any) -> int:
    """Tokens of a row; 1 where a row of the user's own kind does not say."""
    if isinstance(row, dict):
        if "length" in row:
            return int(row["length"])
        if "input_ids" in row:
            return len(row["input_ids"])
    return 1


def lengths_of(rows: Any) -> Callable[[Sequence[int]], Sequence[int]]:
    """A function from row numbers to numbers of tokens that does not read the rows where a column has them."""
    columns = getattr(rows, "column_names", None) or []
    if "length" in columns:
        column = np.asarray(rows.with_format("numpy")["length"][:], dtype=np.int64)
        return lambda numbers: column[np.asarray(numbers, dtype=np.int64)].tolist()
    return lambda numbers: [row_length(rows[i]) for i in numbers]


def is_stream(rows: Any) -> bool:
    """Whether rows can only be read in order."""
    return isinstance(rows, IterableDataset) or not hasattr(rows, "__getitem__")


def fingerprint_of(rows: Any) -> str | None:
    """What identifies prepared rows from one launch to the next; None for rows of the user's own making."""
    prepared = {"row", "length"} <= set(getattr(rows, "column_names", None) or [])
    fingerprint = getattr(rows, "_fingerprint", None) if prepared else None
    return None if fingerprint is None or fingerprint.startswith("private-") else fingerprint
