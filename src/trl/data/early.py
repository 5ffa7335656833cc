"""The usual faults of a data set, found in Arrow's memory before hours of tokenising.

Nulls, empty lists and text that is not UTF-8 can be seen column by column, a million rows in a second. Rows that look
suspicious are then checked properly; what needs Python to be seen is found when the row is tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trl.data.formats import Where, normalise_row

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_AT_A_TIME = 10_000
SUSPECTS = 100
"""How many suspicious rows of a column are checked: a null may be allowed, where rows are of several kinds."""


def check_early(dataset: Dataset, locate: Callable[[int], Where], text_field: str | None) -> None:
    """Raise for the first suspicious row that is malformed.

    Args:
        locate: the place of a row, for messages.
        text_field: the text column; None where a function makes the text, and nulls are its business.

    Raises:
        DataError: naming source, row and column.
    """
    view = dataset.with_format("arrow")
    suspects: dict[str, list[int]] = {}
    for first in range(0, len(view), ROWS_AT_A_TIME):
        table = view[first : first + ROWS_AT_A_TIME]
        _check_text(table, first, locate)
        if text_field is not None:
            for name in table.column_names:
                found = suspects.setdefault(name, [])
                if len(found) < SUSPECTS:
                    found.extend(first + row for row in _suspicious(table[name].combine_chunks())[:SUSPECTS])
    for row in sorted({row for rows in suspects.values() for row in rows}):
        normalise_row(dataset[row], locate(row), text_field or "")


def _check_text(table: pa.Table, first: int, locate: Callable[[int], Where]) -> None:
    try:
        table.validate(full=True)
        return
    except pa.ArrowInvalid:
        pass
    for name in table.column_names:
        for row, value in enumerate(table[name]):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise locate(first + row).error(
                    "is not valid UTF-8", column=name, why=str(error), fix="save the file as UTF-8"
                ) from None


def _suspicious(column: pa.Array) -> list[int]:
    """Rows that are null, an empty list, or hold a message whose role or content is null."""
    marks = [column.is_null()]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        marks.append(pc.fill_null(pc.equal(pc.list_value_length(column), 0), False))
    rows = {int(row) for mark in marks for row in np.flatnonzero(mark.to_numpy(zero_copy_only=False))}
    rows.update(_null_messages(column))
    return sorted(rows)


def _null_messages(column: pa.Array) -> Iterator[int]:
    if not pa.types.is_list(column.type) or not pa.types.is_struct(column.type.value_type):
        return
    parents = pc.list_parent_indices(column)
    messages: Any = column.flatten()
    for key in ("role", "content", "from", "value"):
        if column.type.value_type.get_field_index(key) >= 0:
            yield from pc.filter(parents, pc.struct_field(messages, key).is_null()).to_pylist()
