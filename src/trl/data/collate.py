"""Token rows -> one batch of tensors, with every document's borders kept.

Shapes: B rows, T tokens of the longest row (rounded up to `pad_to_multiple_of`), D documents.
A row is a document, or several when it is packed (`seq_lengths` gives their lengths).

A document's first token is predicted by nothing: the token before it, if there is one, is another document's or
padding. So its label is IGNORE in every layout, and it follows that shifting the whole row left by one never
carries a label over a border:

    tokens        a0 a1 a2 | b0 b1 | pad
    labels        .  a1 a2   .  b1   .
    shift_labels  a1 a2 .    b1 .    .      what position t has to predict
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from trl.layout.labels import IGNORE


@dataclass
class TokenCollator:
    """Rows with `input_ids`, `labels` and, if packed, `seq_lengths`, to a batch. Other columns are ignored.

    Args:
        pad_token_id: the token of padding.
        layout: "padded" gives one row of T tokens for each row. "flat" concatenates all rows to one row
            without padding between them.
        pad_to_multiple_of: T is rounded up to a multiple of this.
    """

    pad_token_id: int
    layout: Literal["padded", "flat"] = "padded"
    pad_to_multiple_of: int | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Build the batch.

        Returns:
            Always `input_ids`, `labels`, `shift_labels`, int64, [B, T] ("flat": [1, T]). Further:

            - padded: `attention_mask` int64 [B, T];
            - padded, packed rows: `position_ids` int64 [B, T] instead, restarting at every document; the padding
              at the end is a document of its own;
            - flat: `position_ids` int64 [1, T] likewise and `cu_seqlens` int32 [D + 1], the documents' borders.

            Without rows the batch is that of one row of one padding token: a forward pass that every rank can
            take part in and that supervises nothing.
        """
        if not rows:
            rows = [{"input_ids": [self.pad_token_id], "labels": [IGNORE]}]
        ids = [np.asarray(row["input_ids"], dtype=np.int64) for row in rows]
        labels = [np.asarray(row["labels"], dtype=np.int64) for row in rows]
        packed = any(row.get("seq_lengths") is not None for row in rows)
        documents = [_document_lengths(row, len(row_ids)) for row, row_ids in zip(rows, ids)]
        if self.layout == "flat":
            ids, labels = [np.concatenate(ids)], [np.concatenate(labels)]
            documents = [np.concatenate(documents)]
        return self._assemble(ids, labels, documents, packed)

    def _assemble(
        self, ids: list[np.ndarray], labels: list[np.ndarray], documents: list[np.ndarray], packed: bool
    ) -> dict[str, Tensor]:
        width = self._rounded(max(map(len, ids)))
        shape = (len(ids), width)
        input_ids_BT = np.full(shape, self.pad_token_id, dtype=np.int64)
        labels_BT = np.full(shape, IGNORE, dtype=np.int64)
        mask_BT = np.zeros(shape, dtype=np.int64)
        position_BT = np.zeros(shape, dtype=np.int64)
        for b, (row_ids, row_labels, lengths) in enumerate(zip(ids, labels, documents)):
            n = len(row_ids)
            input_ids_BT[b, :n] = row_ids
            labels_BT[b, :n] = row_labels
            mask_BT[b, :n] = 1
            lengths = lengths if n == width else np.append(lengths, width - n)  # padding: a document of its own
            starts = np.cumsum(lengths) - lengths
            labels_BT[b, starts] = IGNORE
            position_BT[b] = np.arange(width) - np.repeat(starts, lengths)
        shift_BT = np.full(shape, IGNORE, dtype=np.int64)
        shift_BT[:, :-1] = labels_BT[:, 1:]

        batch: dict[str, np.ndarray] = {"input_ids": input_ids_BT, "labels": labels_BT, "shift_labels": shift_BT}
        if self.layout == "flat":
            # (position 0 begins a document, so the zeros are the borders)
            borders = np.append(np.flatnonzero(position_BT[0] == 0), width)
            batch |= {"position_ids": position_BT, "cu_seqlens": borders.astype(np.int32)}
        elif packed:
            batch["position_ids"] = position_BT
        else:
            batch["attention_mask"] = mask_BT
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _rounded(self, width: int) -> int:
        multiple = self.pad_to_multiple_of or 1
        return -(-width // multiple) * multiple


def _document_lengths(row: Mapping[str, Any], tokens: int) -> np.ndarray:
    lengths = row.get("seq_lengths")
    if lengths is None:
        return np.array([tokens], dtype=np.int64)
    lengths = np.asarray(lengths, dtype=np.int64)
    if lengths.sum() != tokens or (lengths <= 0).any():
        raise ValueError(f"seq_lengths {lengths.tolist()} do not add up to the {tokens} tokens of the row")
    return lengths
