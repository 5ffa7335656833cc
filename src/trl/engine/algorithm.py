"""What an algorithm has to say. It never calls `torch.distributed`, `.item()` or `.mean()` over a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ..models.policy import Batch, Policy

Metrics = dict[str, tuple[Tensor, Tensor]]


@dataclass
class Loss:
    """An algorithm's result for one microbatch.

    Attributes:
        total: the sum of the loss over the microbatch's units, a scalar with gradient. Never a mean: the engine
        divides
            once, by the count over the whole global batch.
        metrics: name -> (sum, weight), both without gradient; logged as sum over everything / weight over everything.
    """

    total: Tensor
    metrics: Metrics = field(default_factory=dict)


class Algorithm(Protocol):
    """A training objective.

    Attributes:
        unit: what the loss is a mean over.
    """

    unit: Literal["tokens", "sequences"]

    def count(self, batch: Batch) -> Tensor:
        """How many units `batch` contributes to the denominator, before any forward pass. Scalar, integer."""
        ...

    def loss(self, policy: Policy, model: nn.Module, batch: Batch) -> Loss:
        """The sum of losses of one microbatch. `model` is the policy's model as the engine runs it."""
        ...


class MetricSums:
    """Running (sum, weight) pairs of one process, reduced over all processes only when asked."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: Metrics) -> None:
        for name, (total, weight) in metrics.items():
            pair = torch.stack([total.detach().double(), weight.detach().double()])
            self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def take(self, names: list[str], device: torch.device) -> Tensor:
        """[len(names), 2] sums and weights since the last call, zeros where this process has none."""
        empty = torch.zeros(2, dtype=torch.float64, device=device)
        out = torch.stack([self._sums.get(n, empty).to(device) for n in names]) if names else empty[None][:0]
        self._sums.clear()
        return out

    def copy(self) -> dict[str, Tensor]:
        """What has been added since the last `take`, to `restore` later."""
        return dict(self._sums)

    def restore(self, sums: dict[str, Tensor]) -> None:
        self._sums = dict(sums)

    @property
    def names(self) -> list[str]:
        return sorted(self._sums)
