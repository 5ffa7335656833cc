"""Activation checkpointing recomputes a layer, but not its attention."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fixtures.tiny import tiny_model
from trl.models.recompute import keep_attention


class Attentions(TorchDispatchMode):
    """Counts forward attention kernels that run."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        self.count += "scaled_dot_product" in name and "backward" not in name
        return func(*args, **(kwargs or {}))


def step(model, ids):
    """Gradients of a step, and how many attention kernels ran forward in it."""
    model.train()
    model.zero_grad()
    with Attentions() as attentions:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return [p.grad.clone() for p in model.parameters()], attentions.count


@pytest.fixture
def ids():
    return torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(0))


def test_attention_runs_once_and_the_gradient_is_the_same(ids):
    model = tiny_model(layers=3)
    plain, without = step(model, ids)
    upstream = copy.deepcopy(model)
    upstream.activation_checkpointing_enable()
    keep_attention(model)
    model.activation_checkpointing_enable()
    kept, with_kept = step(model, ids)
    _, twice = step(upstream, ids)
    assert (without, with_kept, twice) == (3, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(plain, kept))


def test_a_copy_of_the_model_switches_its_own_layers(ids):
    model = tiny_model(layers=2)
    keep_attention(model)
    other = copy.deepcopy(model)
    other.activation_checkpointing_enable()
    assert other.is_activation_checkpointing
    assert not model.is_activation_checkpointing


def test_under_attention_dropout_everything_is_recomputed(ids):
    model = tiny_model(layers=2, attention_dropout=0.1)
    keep_attention(model)
    model.activation_checkpointing_enable()
    torch.manual_seed(0)
    checkpointed, count = step(model, ids)
    plain = tiny_model(layers=2, attention_dropout=0.1)
    torch.manual_seed(0)
    expected, once = step(plain, ids)
    assert count == 2 * once
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, checkpointed))
