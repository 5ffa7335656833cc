"""Data parallelism by replication, with gradients that are summed.

`DistributedDataParallel` averages gradients over ranks. Multiplying the loss by the number of ranks would undo that on
paper
but not in floating point: transformers' norms compute in fp32 whatever the model's dtype, and rounding a gradient
times 3 is not rounding the gradient. With a sum nothing needs undoing, and every layout rounds alike.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_BUCKET_BYTES = 64 * 2**20


def sum_gradients(model: nn.Module) -> None:
    """Make a DDP model sum its gradients over ranks; any other module is left alone. To be called before a forward."""
    if isinstance(model, DistributedDataParallel) and not getattr(model, "_sums_gradients", False):
        # Buffers of language models are constants, and a forward pass without collectives may fail on one rank alone:
        # the step is then run again (`engine.memory`).
        model.broadcast_buffers = False
        model.register_comm_hook(None, _all_reduce_sum)
        model._sums_gradients = True  # type: ignore[assignment]


def reduce_gradients(model: nn.Module) -> None:
    """Sum the gradients over ranks now, for backward passes that ran without reduction. A few large transfers."""
    if not isinstance(model, DistributedDataParallel):
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for bucket in _buckets(gradients):
        flat = torch.cat([g.flatten() for g in bucket])
        dist.all_reduce(flat)
        for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type, about `_BUCKET_BYTES` at a time."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or size > _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
    if bucket:
        yield bucket


def _all_reduce_sum(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    # (DDP reads the annotations above as objects, hence no postponed evaluation in this file)
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
