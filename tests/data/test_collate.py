"""Batches by hand: no label crosses a document's border, in any layout."""

from __future__ import annotations

import pytest
import torch

from trl.data.collate import TokenCollator
from trl.layout.labels import IGNORE

PAD = 9
A = {"input_ids": [1, 2, 3], "labels": [1, 2, 3], "row": 7, "text": "ignored"}
B = {"input_ids": [4, 5], "labels": [4, 5]}
PACKED = {"input_ids": [1, 2, 3, 4, 5], "labels": [1, 2, 3, 4, 5], "seq_lengths": [3, 2]}


def _lists(batch: dict[str, torch.Tensor]) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


def test_padded() -> None:
    assert _lists(TokenCollator(PAD)([A, B])) == {
        "input_ids": [[1, 2, 3], [4, 5, PAD]],
        "labels": [[-100, 2, 3], [-100, 5, -100]],
        "shift_labels": [[2, 3, -100], [5, -100, -100]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
    }


def test_padded_rows_of_several_documents() -> None:
    one = {"input_ids": [6], "labels": [6], "seq_lengths": [1]}
    assert _lists(TokenCollator(PAD)([PACKED, one])) == {
        "input_ids": [[1, 2, 3, 4, 5], [6, PAD, PAD, PAD, PAD]],
        "labels": [[-100, 2, 3, -100, 5], [-100] * 5],
        "shift_labels": [[2, 3, -100, 5, -100], [-100] * 5],
        "position_ids": [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]],
    }


@pytest.mark.parametrize("rows", [[A, B], [PACKED]], ids=["two rows", "one packed row"])
def test_flat(rows: list[dict]) -> None:
    assert _lists(TokenCollator(PAD, layout="flat")(rows)) == {
        "input_ids": [[1, 2, 3, 4, 5]],
        "labels": [[-100, 2, 3, -100, 5]],
        "shift_labels": [[2, 3, -100, 5, -100]],
        "position_ids": [[0, 1, 2, 0, 1]],
        "cu_seqlens": [0, 3, 5],
    }


def test_flat_padding_is_a_document_of_its_own() -> None:
    batch = _lists(TokenCollator(PAD, layout="flat", pad_to_multiple_of=4)([A, B]))
    assert batch["input_ids"] == [[1, 2, 3, 4, 5, PAD, PAD, PAD]]
    assert batch["position_ids"] == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert batch["cu_seqlens"] == [0, 3, 5, 8]
    assert batch["shift_labels"] == [[2, 3, -100, 5, -100, -100, -100, -100]]


def test_pad_to_multiple() -> None:
    batch = TokenCollator(PAD, pad_to_multiple_of=4)([A, B])
    assert batch["input_ids"].shape == (2, 4)
    assert TokenCollator(PAD, pad_to_multiple_of=3)([A, B])["input_ids"].shape == (2, 3)


def test_no_rows_give_one_token_that_supervises_nothing() -> None:
    assert _lists(TokenCollator(PAD)([])) == {
        "input_ids": [[PAD]],
        "labels": [[-100]],
        "shift_labels": [[-100]],
        "attention_mask": [[1]],
    }
    assert _lists(TokenCollator(PAD, layout="flat")([])) == {
        "input_ids": [[PAD]],
        "labels": [[-100]],
        "shift_labels": [[-100]],
        "position_ids": [[0]],
        "cu_seqlens": [0, 1],
    }


def test_types() -> None:
    batch = TokenCollator(PAD, layout="flat")([A])
    types = {name: tensor.dtype for name, tensor in batch.items()}
    assert types.pop("cu_seqlens") == torch.int32
    assert set(types.values()) == {torch.int64}


def test_rows_are_not_changed() -> None:
    row = {"input_ids": [1, 2], "labels": [1, 2]}
    TokenCollator(PAD)([row])
    assert row == {"input_ids": [1, 2], "labels": [1, 2]}


def test_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 2\] do not add up to the 5 tokens"):
        TokenCollator(PAD)([PACKED | {"seq_lengths": [2, 2]}])
    with pytest.raises(ValueError, match="do not add up"):
        TokenCollator(PAD)([PACKED | {"seq_lengths": [5, 0]}])


@pytest.mark.parametrize("layout", ["padded", "flat"])
def test_random_borders(layout: str) -> None:
    """A label says which token it is: where it is set it is the next token of the same document, always."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        rows, first = [], 0
        for _ in range(int(torch.randint(1, 5, (1,), generator=generator))):
            lengths = torch.randint(1, 6, (int(torch.randint(1, 4, (1,), generator=generator)),), generator=generator)
            n = int(lengths.sum())
            ids = list(range(100 + first, 100 + first + n))
            rows.append({"input_ids": ids, "labels": ids, "seq_lengths": lengths.tolist()})
            first += n
        document, k = {}, 0
        for row in rows:
            for n in row["seq_lengths"]:
                document |= {100 + len(document) + i: k for i in range(n)}
                k += 1
        batch = TokenCollator(PAD, layout=layout)(rows)
        ids, shifted = batch["input_ids"].flatten().tolist(), batch["shift_labels"].flatten().tolist()
        supervised = [(i, target) for i, target in zip(ids, shifted) if target != IGNORE]
        assert all(target == i + 1 and document[i] == document[target] for i, target in supervised)
        assert len(supervised) == len(document) - k, "every token but a document's first is predicted once"
