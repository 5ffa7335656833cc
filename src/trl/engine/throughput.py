"""Tokens, padding, time and memory between two logs. Time spent in evaluation and saving is not counted."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..layout.labels import IGNORE


class Throughput:
    """Counts of one training run. Counts are over the whole job, so every rank holds the same numbers."""

    def __init__(self, device: torch.device):
        self.device = device
        self.tokens_seen = 0
        self._since: float | None = None
        self._window = torch.zeros(3, dtype=torch.float64)
        self._window_seconds = 0.0

    def step_begins(self) -> None:
        self._settle()
        self._since = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._settle()
        try:
            yield
        finally:
            self._since = time.perf_counter()

    def _settle(self) -> None:
        if self._since is not None:
            self._window_seconds += time.perf_counter() - self._since
        self._since = None

    @staticmethod
    def counts(batches: list[dict[str, Any]]) -> Tensor:
        """[3] int64: tokens, slots (tokens and padding) and supervised tokens of this rank's microbatches."""
        totals = torch.zeros(3, dtype=torch.int64)
        for batch in batches:
            ids, labels = batch.get("input_ids"), batch.get("shift_labels")
            slots = 0 if ids is None else ids.numel()
            supervised = 0 if labels is None else int((labels != IGNORE).sum())
            totals += torch.tensor([int(batch["tokens"]), slots, supervised])
        return totals

    def add(self, sums: Tensor) -> None:
        self._window += sums.to(self._window)
        self.tokens_seen += int(sums[0])

    def take(self, devices: int) -> dict[str, float]:
        """Rates since the last call."""
        self._settle()
        self._since = time.perf_counter()
        tokens, slots, supervised = self._window.tolist()
        seconds = max(self._window_seconds, 1e-9)
        self._window.zero_()
        self._window_seconds = 0.0
        return {
            "num_tokens": float(self.tokens_seen),
            "tokens_per_second": tokens / seconds,
            "tokens_per_second_per_device": tokens / seconds / devices,
            "supervised_tokens_per_second": supervised / seconds,
            "supervised_tokens_per_second_per_device": supervised / seconds / devices,
            "padding_share": 1 - tokens / slots if slots else 0.0,
            "peak_memory_gib": peak_memory_gib(self.device),
        }


def peak_memory_gib(device: torch.device) -> float:
    """Most memory this process has held: allocated on an accelerator, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
