"""Which file a row came from, for messages.

A data set that was loaded by name carries that name and its number of rows in its description, which survives
shuffling, selecting and mixing. Where the rows can no longer be matched with the files' (a slice, a map that changes
their number), messages name the files and count the rows as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from datasets import Dataset, IterableDataset

from trl.data.formats import Where

AnyDataset = TypeVar("AnyDataset", Dataset, IterableDataset)
Parts = list[tuple[str, int]]

KEY = "rows of"


def mark_origin(dataset: AnyDataset, parts: Sequence[tuple[str, int]]) -> AnyDataset:
    """Note that the data set consists of the rows of these sources (name, number of rows), one after another.

    For a stream the numbers are 0.
    """
    dataset.info.description = json.dumps({KEY: parts})
    return dataset


def origin(dataset: Dataset | IterableDataset) -> Parts:
    """What `mark_origin` noted, or nothing."""
    try:
        noted = json.loads(dataset.info.description or "")
    except ValueError:
        return []  # somebody else's description
    return [(name, rows) for name, rows in noted[KEY]] if isinstance(noted, dict) and KEY in noted else []


def origin_name(dataset: Dataset | IterableDataset, otherwise: str) -> str:
    """What to call a data set in messages."""
    return " + ".join(dict.fromkeys(name for name, _ in origin(dataset))) or otherwise


def locator(dataset: Dataset, otherwise: str) -> Callable[[int], Where]:
    """A function from the number of a row to its place in the files."""
    parts = origin(dataset)
    ends = np.cumsum([rows for _, rows in parts])
    if not parts:
        return lambda row: Where(otherwise, row)
    if dataset.data.num_rows != ends[-1]:
        name = f"rows taken from {origin_name(dataset, otherwise)}"
        return lambda row: Where(name, row)
    # a data set that was shuffled or selected from has the numbers of its rows in a table (None: all, in order)
    chosen: Any = getattr(dataset, "_indices", None)

    def locate(row: int) -> Where:
        if chosen is not None:
            row = chosen.column(0)[row].as_py()
        part = int(np.searchsorted(ends, row, side="right"))
        name, rows = parts[part]
        return Where(name, row - (int(ends[part]) - rows))

    return locate
