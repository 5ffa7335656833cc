"""Replicas that should be equal, are they? A hash of the weights, compared over ranks.

What makes replicas drift apart: a callback that changes the state of one rank only, a loss taken around the wrapper
that reduces gradients, faulty memory. Training goes on as if nothing had happened, so it has to be looked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import TrlError

# Odd, so multiplying by it modulo 2^64 loses nothing (Knuth's golden-ratio multiplier).
_MULTIPLIER = -7046029254386353131
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 2**24


class ReplicaDrift(TrlError):
    """A rank's weights are not those of the others."""

    exit_code = 1


def weights_hash(tensors: Iterable[Tensor]) -> Tensor:
    """An int64 scalar that depends on every bit of every tensor and on their positions."""
    total: Tensor | None = None
    for tensor in tensors:
        part = _tensor_hash(tensor.detach())
        total = part if total is None else total * _MULTIPLIER + part
    return torch.zeros((), dtype=torch.int64) if total is None else total


def _tensor_hash(tensor: Tensor) -> Tensor:
    """Sum of (bits * odd weight of the position), in int64 arithmetic that wraps."""
    bits = tensor.contiguous().flatten().view(_INTEGERS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, len(bits), _CHUNK):
        chunk = bits[first : first + _CHUNK].long()
        position = torch.arange(first, first + len(chunk), device=tensor.device)
        total += ((chunk + 1) * (2 * position * _MULTIPLIER + 1)).sum()
    return total


def check_replicas(tensors: Iterable[Tensor], step: int) -> None:
    """Compare the weights of all ranks. Every rank must call this.

    Raises:
        ReplicaDrift: on every rank, naming those whose weights differ from the most common ones.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    own = weights_hash(tensors)
    gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    hashes = [int(h) for h in gathered]
    common = max(hashes, key=lambda h: (hashes.count(h), h == hashes[0]))
    different = [rank for rank, h in enumerate(hashes) if h != common]
    if different:
        raise ReplicaDrift(
            f"after step {step} the weights of rank {', '.join(map(str, different))} differ from those of the others",
            why="something changed the state of some ranks only: a callback that acts on one rank, or faulty memory",
            fix="resume from the last checkpoint; make callbacks act on every rank alike",
        )
