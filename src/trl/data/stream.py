"""A stream of rows -> a stream of token rows, made as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from datasets import IterableDataset

from trl.data.formats import Where
from trl.data.origin import origin_name
from trl.data.packing import pack
from trl.data.prepare import Log, PrepareOptions, check_columns
from trl.data.prompts import Note, tokenize_rows
from trl.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLUMNS = ("input_ids", "labels", "length", "row")


def prepare_stream(
    dataset: IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    options: PrepareOptions,
    *,
    source: str,
    batch_size: int = 1000,
    log: Log = print,
) -> IterableDataset:
    """Token rows of a stream, made as they are asked for; columns as in `prepare`.

    A malformed row raises when it is reached. With packing, `batch_size` rows are packed together.
    """
    source = origin_name(dataset, source)
    first = next(iter(dataset.take(1)), None)
    if first is None:
        raise DataError(f"{source} has no rows")
    check_columns(first, options, source)
    return dataset.map(
        _StreamStep(tokenizer, options, source, log),
        batched=True,
        batch_size=batch_size,
        with_indices=True,
        remove_columns=list(dataset.column_names or first),
    )


class _StreamStep:
    """Columns of a batch of rows -> columns of its token rows."""

    PATIENCE = 1000
    """So many rows without a token to learn from the start on are an error: else the stream would never end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: PrepareOptions, source: str, log: Log) -> None:
        self.tokenizer, self.options, self.source, self.log = tokenizer, options, source, log
        self.seen = self.empty = 0

    def __call__(self, columns: Mapping[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        examples = [dict(zip(columns, values)) for values in zip(*columns.values())]
        places = [Where(self.source, row) for row in indices]
        tokenised = tokenize_rows(examples, places, self.tokenizer, self.options.rows)
        rows = [
            {
                "input_ids": tokens.input_ids.tolist(),
                "labels": tokens.labels.tolist(),
                "length": len(tokens.input_ids),
                "row": row,
            }
            for row, tokens in zip(indices, tokenised)
            if Note.UNSUPERVISED not in tokens.note
        ]
        self._count(len(examples), len(examples) - len(rows))
        if self.options.packing:
            assert self.options.max_length is not None
            rows = pack(rows, self.options.max_length, self.options.packing)
        names = (*COLUMNS, "seq_lengths") if self.options.packing else COLUMNS
        return {name: [row[name] for row in rows] for name in names}

    def _count(self, rows: int, empty: int) -> None:
        before, self.seen, self.empty = self.empty, self.seen + rows, self.empty + empty
        if self.empty == self.seen >= self.PATIENCE:
            raise DataError(
                f"{self.source}: none of the first {self.seen} rows has a token to learn",
                f"max_length={self.options.max_length}",
                "raise max_length, or keep the end of the rows (truncation_mode='keep_end')",
            )
        if before.bit_length() < self.empty.bit_length():  # at 1, 2, 4, 8, ...
            self.log(
                f"warning: {self.empty:,} of the first {self.seen:,} rows have no supervised token after truncation "
                f"to max_length={self.options.max_length} and are left out"
            )
