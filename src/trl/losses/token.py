"""The token loss, without ever holding the logits of a batch.

Shapes: N supervised positions, H hidden size, V vocabulary.

Logits are made a chunk of rows at a time. Because the loss is a sum, its gradient is known as soon as a chunk's logits
are: it is computed in the forward pass (three matrix products instead of the four of recomputation) and multiplied by
the incoming scalar in the backward. Peak memory is a chunk of logits and the head's gradient, whatever N.

A chunk is as large as the matrix products like it. The softmax of a chunk goes over smaller blocks of rows: on a CPU a
block stays in the cache from the first pass over it to the last, so that the softmax costs little beside the products.

Measured against `torch.nn.functional.linear_cross_entropy` (torch 2.13) by `benchmarks/token_loss.py`: as fast as its
best chunk size and nearly twice as fast as its automatic one on CPU; it also knows "dft" and heads that are frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

TokenLossKind = Literal["nll", "dft"]

# Logits held at once, in bytes: enough rows for the matrix products to run at full speed, of which a GPU needs more.
_CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**28}
# Logits whose softmax is taken at once, in elements: what a CPU's cache holds. A GPU takes the whole chunk.
_BLOCK_ELEMENTS = {"cpu": 2**20}


class TokenLoss(NamedTuple):
    """Sums over supervised tokens; the engine divides once.

    Attributes:
        total: sum of the tokens' losses, a scalar with gradient.
        logps: [N] log-probability of each target, without gradient.
        correct: [N] whether the target has the largest logit.
    """

    total: Tensor
    logps: Tensor
    correct: Tensor


@dataclass(frozen=True)
class HeadShape:
    """What a model does to the product of hidden state and head: logits = softcap(scale * (h @ W.T + b)).

    Args:
        scale: a factor on the logits (Cohere's `logit_scale`, Granite's 1 / `logits_scaling`).
        softcap: c in c * tanh(logits / c) (Gemma 2); None where there is none.
    """

    scale: float = 1.0
    softcap: float | None = None


def linear_token_loss(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    kind: TokenLossKind = "nll",
    shape: HeadShape | None = None,
    chunk_rows: int | None = None,
) -> TokenLoss:
    """Sum of token losses of a linear head.

    Args:
        hidden_NH: hidden states of the supervised positions, [N, H]; N may be 0.
        weight_VH: the head's weight, [V, H].
        targets_N: token ids, [N], each in 0..V-1.
        bias_V: the head's bias.
        kind: "nll": -log p. "dft": -sg(p) log p, with sg the stop-gradient (Wu et al. 2025, "On the Generalization of
        SFT",
            arXiv:2508.05629, eq. 9).
        shape: scale and soft cap of the logits.
        chunk_rows: rows of logits held at once; by default from V and the device.

    Under autocast the matrix products run in its dtype; softmax, sums and the head's gradient are fp32.
    """
    device = hidden_NH.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VH.dtype
    if chunk_rows is None:
        elements = _CHUNK_BYTES.get(device, _CHUNK_BYTES["cuda"]) // dtype.itemsize
        chunk_rows = max(32, elements // weight_VH.shape[0] // 32 * 32)
    total, logps, correct = _LinearTokenLoss.apply(
        hidden_NH, weight_VH, bias_V, targets_N, kind, shape or HeadShape(), chunk_rows, dtype
    )
    return TokenLoss(total, logps, correct)


def token_loss_from_logps(logps_N: Tensor, kind: TokenLossKind = "nll") -> Tensor:
    """The same sums from log-probabilities with gradient, for heads that are not linear. [N] -> scalar."""
    if kind == "dft":
        return -(logps_N.detach().exp() * logps_N).sum()
    return -logps_N.sum()


class _LinearTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        kind: TokenLossKind,
        shape: HeadShape,
        chunk_rows: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        N = hidden_NH.shape[0]
        need_hidden, need_weight, need_bias = (ctx.needs_input_grad[i] for i in (0, 1, 2))
        need_any = need_hidden or need_weight or need_bias
        exact = torch.float64 if dtype == torch.float64 else torch.float32

        hidden, weight = hidden_NH.to(dtype), weight_VH.to(dtype)
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if need_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=exact) if need_bias and bias_V is not None else None
        logps = torch.empty(N, dtype=exact, device=hidden.device)
        correct = torch.empty(N, dtype=torch.bool, device=hidden.device)

        # One buffer serves every chunk: fresh pages for tens of MB of logits would cost more than the softmax.
        buffer = torch.empty(min(chunk_rows, N), weight.shape[0], dtype=dtype, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for first in range(0, N, chunk_rows):
                rows = slice(first, min(first + chunk_rows, N))
                product = torch.mm(hidden[rows], weight.t(), out=buffer[: rows.stop - first])
                for block in _blocks(rows, weight.shape[0], hidden.device.type):
                    part = product[block.start - first : block.stop - first]
                    logps[block], correct[block], grad = _softmax(
                        part.to(exact), bias_V, targets_N[block, None], kind, shape, need_any
                    )
                    if grad is None:
                        continue
                    if grad_bias is not None:
                        grad_bias += grad.sum(0)
                    if grad.data_ptr() != part.data_ptr():
                        part.copy_(grad)
                if not need_any:
                    continue
                grad = product
                if grad_hidden is not None:
                    torch.mm(grad, weight, out=grad_hidden[rows])
                if grad_weight is not None:
                    _add_product(grad_weight, grad.t(), hidden[rows])

        ctx.grads = (
            None if grad_hidden is None else grad_hidden.to(hidden_NH.dtype),
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None or bias_V is None else grad_bias.to(bias_V.dtype),
        )
        ctx.mark_non_differentiable(logps, correct)
        return token_loss_from_logps(logps, kind), logps, correct

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (scale, _, _), grads = grad_outputs, ctx.grads
        if grads is None:
            raise RuntimeError("the token loss was already differentiated once; its gradients are used in place")
        ctx.grads = None
        return (*(None if g is None else g.mul_(scale) for g in grads), None, None, None, None, None)


def _blocks(rows: slice, vocabulary: int, device: str) -> Iterator[slice]:
    """`rows`, a block at a time whose logits fit the cache."""
    size = max(1, _BLOCK_ELEMENTS[device] // vocabulary) if device in _BLOCK_ELEMENTS else rows.stop - rows.start
    for first in range(rows.start, rows.stop, size):
        yield slice(first, min(first + size, rows.stop))


def _softmax(
    product: Tensor, bias_V: Tensor | None, picked: Tensor, kind: TokenLossKind, shape: HeadShape, need_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of a block of n rows: log-probability of each target and whether it is the largest, [n], and the gradient of
    the loss to `product`, [n, V]: in the place of `product` where the head is plain."""
    logits, slope = _shape_logits(product, bias_V, shape)
    target_logit = logits.gather(1, picked)
    largest = logits.amax(1, keepdim=True)
    correct = (target_logit >= largest).squeeze(1)
    grad = logits.sub_(largest).exp_()
    norm = grad.sum(1, keepdim=True)
    logps = (target_logit - largest - norm.log()).squeeze(1)
    if not need_gradient:
        return logps, correct, None
    # d(-log p_target)/d logits = softmax - onehot; "dft" weighs each row by its own p, held constant.
    grad.div_(norm)
    grad.scatter_add_(1, picked, grad.new_full((1, 1), -1.0).expand_as(picked))
    if kind == "dft":
        grad.mul_(logps[:, None].exp())
    if slope is not None:
        grad.mul_(slope)
    return logps, correct, grad


def _shape_logits(product: Tensor, bias_V: Tensor | None, shape: HeadShape) -> tuple[Tensor, Tensor | float | None]:
    """Logits from the product h @ W.T, and d logits / d product; None where that is 1."""
    logits = product if bias_V is None else product + bias_V.to(product.dtype)
    if shape.scale != 1.0:
        logits = logits * shape.scale
    if shape.softcap is None:
        return logits, None if shape.scale == 1.0 else shape.scale
    capped = torch.tanh(logits / shape.softcap)
    return capped * shape.softcap, (1 - capped * capped) * shape.scale


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, summed over chunks in `total`'s dtype even where the product is in a shorter one."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
