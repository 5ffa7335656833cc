"""Memory pressure does not change the result: injected on one rank only, in forward and in backward."""

import os

import pytest
import torch

from tests.engine.runs import train
from trl.engine.memory import documents_of, split_batch

LIMIT = 130  # tokens in a microbatch that still fit on rank 1


def train_short_of_memory(where: str, limit: int, **options):
    """Rank 1 refuses microbatches of more than `limit` tokens, before the forward pass or in the backward."""
    from trl.models.policy import Policy

    plain = Policy.token_loss

    def token_loss(self, wrapped, batch, kind="nll"):
        too_large = os.environ.get("RANK") == "1" and batch["input_ids"].numel() > limit
        if too_large and where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        loss = plain(self, wrapped, batch, kind)
        return loss._replace(total=Refuse.apply(loss.total)) if too_large else loss

    Policy.token_loss = token_loss
    try:
        return train(**options)
    finally:
        Policy.token_loss = plain


class Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory (injected)")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_trajectory_does_not_change(pool, where, attention):
    options = {"global_batch_size": 16, "model": {"attention": attention}}
    plain = pool.run(train, 2, **options)
    cut = pool.run(
        train_short_of_memory,
        2,
        where=where,
        limit=LIMIT,
        auto_find_batch_size=True,
        timeout=60,
        patience=15,
        **options,
    )
    for run, reference in zip(cut, plain, strict=True):
        assert run.distance(reference) < (1e-6 if attention == "eager" else 1e-10)
        assert run.losses == pytest.approx(reference.losses, rel=1e-6)
        for name in ("mean_token_accuracy", "num_tokens", "grad_norm"):  # nothing counted twice
            assert [e[name] for e in run.logs] == pytest.approx([e[name] for e in reference.logs], rel=1e-6), name


def test_a_single_document_that_does_not_fit(pool):
    with pytest.raises(AssertionError, match="out of memory with a single document a microbatch"):
        pool.run(train_short_of_memory, 2, where="forward", limit=2, auto_find_batch_size=True, global_batch_size=16)


def test_without_asking_the_error_says_what_to_do(pool):
    with pytest.raises(AssertionError, match="set auto_find_batch_size"):
        pool.run(train_short_of_memory, 2, where="forward", limit=LIMIT, global_batch_size=16)


def test_splitting_keeps_whole_documents():
    flat = {
        "input_ids": torch.arange(10)[None],
        "shift_labels": torch.arange(10)[None],
        "position_ids": torch.tensor([[0, 1, 2, 0, 0, 1, 0, 1, 2, 3]]),
        "cu_seqlens": torch.tensor([0, 3, 4, 6, 10], dtype=torch.int32),
        "tokens": torch.tensor(10),
    }
    parts = split_batch(flat, 2)
    assert [p["input_ids"].tolist() for p in parts] == [[[0, 1, 2, 3]], [[4, 5, 6, 7, 8, 9]]]
    assert [p["cu_seqlens"].tolist() for p in parts] == [[0, 3, 4], [0, 2, 6]]
    assert len(split_batch(flat, 64)) == documents_of(flat) == 4
    padded = {"input_ids": torch.arange(6).view(3, 2), "attention_mask": torch.ones(3, 2)}
    assert [p["input_ids"].shape[0] for p in split_batch(padded, 2)] == [1, 2]
    assert split_batch(padded, 1) == [padded]
