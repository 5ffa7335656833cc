"""The batch plan: from whatever the user said about the batch, the rest.

    global batch = per device x accumulation x data-parallel ranks,   data-parallel ranks = world / sequence parallel

Where the global batch is not given, the three numbers define it. Where it is, it is the contract: what is missing is
solved for, also where it does not divide (48 rows on 5 devices), and a contradiction is an error that writes out the
product.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BatchError

DEFAULT_PER_DEVICE = 8  # what users know as the default of per_device_train_batch_size


@dataclass(frozen=True)
class BatchPlan:
    """How a global batch is carried out.

    Attributes:
        global_batch_size: rows of one optimizer step.
        per_device: most rows of one microbatch.
        accumulation: microbatches per rank and step.
        data_ranks: ranks that see different rows.
        sequence_parallel: ranks that share each row.
    """

    global_batch_size: int
    per_device: int
    accumulation: int
    data_ranks: int
    sequence_parallel: int = 1

    @property
    def microbatches(self) -> int:
        """Microbatches of one step, over the whole job."""
        return self.accumulation * self.data_ranks

    @property
    def ragged(self) -> bool:
        """Whether some microbatch of a full step has fewer than `per_device` rows."""
        return self.per_device * self.microbatches != self.global_batch_size

    def __str__(self) -> str:
        parts = (
            f"{_count(self.data_ranks, 'data rank')} x {self.per_device} per device x {self.accumulation} accumulation"
        )
        if self.ragged:
            parts += f" = room for {self.per_device * self.microbatches}, ragged"
        if self.sequence_parallel > 1:
            parts += f"; each row split over {self.sequence_parallel} devices"
        return f"{self.global_batch_size} rows a step = {parts}"


def make_plan(
    *,
    world_size: int,
    global_batch_size: int | None = None,
    per_device: int | None = None,
    accumulation: int | None = None,
    sequence_parallel: int = 1,
) -> BatchPlan:
    """Solve for what is missing.

    Args:
        world_size: processes of the whole job.
        global_batch_size, per_device, accumulation: what the user gave; None where not given.
        sequence_parallel: processes that share each row.

    Raises:
        BatchError: a number below 1, a world that the sequence-parallel size does not divide, or a contradiction.
    """
    given = {
        "world_size": world_size,
        "global_batch_size": global_batch_size,
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": accumulation,
        "sequence_parallel_size": sequence_parallel,
    }
    for name, value in given.items():
        if value is not None and value < 1:
            raise BatchError(f"{name} is {value}", fix="give a whole number of at least 1")
    if world_size % sequence_parallel:
        raise BatchError(
            f"sequence_parallel_size {sequence_parallel} does not divide the number of processes, {world_size}",
            fix=f"use one of {[s for s in range(1, world_size + 1) if world_size % s == 0]}",
        )
    ranks = world_size // sequence_parallel

    if global_batch_size is None:
        per_device = DEFAULT_PER_DEVICE if per_device is None else per_device
        accumulation = 1 if accumulation is None else accumulation
        return BatchPlan(per_device * accumulation * ranks, per_device, accumulation, ranks, sequence_parallel)

    if per_device is not None and accumulation is not None:
        _check_product(global_batch_size, per_device, accumulation, ranks)
    elif per_device is not None:
        accumulation = _ceil(global_batch_size, per_device * ranks)
    else:
        accumulation = 1 if accumulation is None else accumulation
        per_device = _ceil(global_batch_size, accumulation * ranks)
    return BatchPlan(global_batch_size, per_device, accumulation, ranks, sequence_parallel)


def _check_product(global_batch_size: int, per_device: int, accumulation: int, ranks: int) -> None:
    product = per_device * accumulation * ranks
    if product != global_batch_size:
        raise BatchError(
            f"global_batch_size {global_batch_size} is not per_device_train_batch_size {per_device} x "
            f"gradient_accumulation_steps {accumulation} x {_count(ranks, 'data-parallel rank')} = {product}",
            fix="drop one of the three numbers; it is then solved for, also where it does not divide",
        )


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
