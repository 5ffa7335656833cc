"""Data parallelism by replication, with gradients that are summed.

`DistributedDataParallel` averages gradients over ranks. Multiplying the loss by the number of ranks would undo that on
paper
but not in floating point: transformers' norms compute in fp32 whatever the model's dtype, and rounding a gradient
times 3 is not rounding the gradient. With a sum nothing needs undoing, and every layout rounds alike.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def sum_gradients(model: nn.Module) -> None:
    """Make a DDP model sum its gradients over ranks; any other module is left alone. To be called once, before a
    backward."""
    if isinstance(model, DistributedDataParallel) and not getattr(model, "_sums_gradients", False):
        model.register_comm_hook(None, _all_reduce_sum)
        model._sums_gradients = True  # type: ignore[assignment]


def _all_reduce_sum(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    # (DDP reads the annotations above as objects, hence no postponed evaluation in this file)
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
