"""Memory pressure is execution too: a microbatch that does not fit is cut into parts, and the step is run again.

Rule 7 of the contract. All ranks agree before any gradient is reduced: every microbatch of the step runs without
reduction, then one all-reduce tells whether some rank ran out of memory. If so, gradients are dropped, every
microbatch is cut into twice as many parts, and the step starts over; what was counted is dropped with it. The number
of parts is kept for the rest of the run. The global batch, the denominators and so the result stay what they were.

The price is that the reduction no longer overlaps with the last backward pass, so this is asked for:
`auto_find_batch_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..errors import TrlError

Batch = dict[str, Tensor]


class OutOfMemory(TrlError):
    """Not even the smallest microbatch fits."""

    exit_code = 1


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the host refused memory."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


class Parts:
    """Into how many parts each microbatch is cut. Starts whole, and doubles when asked to."""

    def __init__(self) -> None:
        self.count = 1

    def run(
        self,
        attempt: Callable[[int], Tensor],
        any_rank: Callable[[bool], bool],
        forget: Callable[[], None],
        finest: int,
        say: Callable[[str], None],
    ) -> Tensor:
        """Run a step until it fits.

        Args:
            attempt: runs all microbatches of this rank, each cut into the given number of parts, without reducing.
            any_rank: whether the argument is true on any rank; every rank calls it once an attempt.
            forget: drops gradients, metrics and cached memory of a failed attempt.
            finest: the number of parts at which nothing is left to cut, on any rank.
            say: takes a line for the user.

        Raises:
            OutOfMemory: a single document does not fit.
        """
        while True:
            failed = False
            result = torch.zeros(())
            try:
                result = attempt(self.count)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failed = True
            if not any_rank(failed):
                return result
            forget()
            if self.count >= finest:
                raise OutOfMemory(
                    "out of memory with a single document a microbatch",
                    why="some rank could not hold the forward and backward pass of its longest document",
                    fix="shorten max_length, keep gradient_checkpointing on, or train an adapter (use_peft)",
                )
            self.count *= 2
            say(
                f"out of memory: every microbatch is cut into {self.count} parts from here on and the step is run "
                "again; the global batch stays what it is"
            )


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """Cut a collated batch into at most `parts` batches of whole documents, as even in documents as they come.

    Args:
        batch: as `data.collate.TokenCollator` makes it: flat (with `cu_seqlens`) or padded.
    """
    if parts == 1:
        return [batch]
    if "cu_seqlens" in batch:
        return [_flat_part(batch, first, last) for first, last in _spans(len(batch["cu_seqlens"]) - 1, parts)]
    size = batch["input_ids"].shape[0]
    return [
        {k: v[first:last] if v.dim() and v.shape[0] == size else v for k, v in batch.items()}
        for first, last in _spans(size, parts)
    ]


def documents_of(batch: Batch) -> int:
    """How many parts a batch can be cut into."""
    return len(batch["cu_seqlens"]) - 1 if "cu_seqlens" in batch else batch["input_ids"].shape[0]


def _flat_part(batch: Batch, first: int, last: int) -> Batch:
    borders = batch["cu_seqlens"][first : last + 1]
    start, end, width = int(borders[0]), int(borders[-1]), batch["input_ids"].shape[1]
    part = {k: v[:, start:end] if v.dim() == 2 and v.shape[1] == width else v for k, v in batch.items()}
    return {**part, "cu_seqlens": borders - borders[0]}


def _spans(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Consecutive spans that cover range(count), sizes differing by at most one, none of them empty."""
    parts = min(parts, count)
    for i in range(parts):
        yield i * count // parts, (i + 1) * count // parts


@contextmanager
def explained() -> Iterator[None]:
    """Say what to do about running out of memory where the step is not run again by itself."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory: {' '.join(str(error).split())[:300]}",
            fix="set auto_find_batch_size: microbatches are then cut until they fit, and the result stays the same; "
            "or lower per_device_train_batch_size with global_batch_size fixed",
        ) from error
