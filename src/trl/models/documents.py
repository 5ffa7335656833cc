"""Attention over documents that lie end to end in one row, with neither padding nor a score mask.

A flat row holds documents of lengths l_1 .. l_n. A padded batch costs n * max(l)^2 scores, a block mask over the flat
row (sum l)^2; here each document attends over itself, sum l_i^2, with the causal kernel that needs no mask at all.
What is not
computed cannot leak: documents never see each other by construction.

It is registered with transformers' attention interface under its own name, so every decoder model that uses the
interface has it. Outside `document_attention(...)` it is the SDPA attention of transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..errors import ModelError

NAME = "trl_documents"

# Set while a model runs over a flat row: tells the mask function to make no mask. Layers are told by the `documents`
# argument instead, because a layer that is recomputed in the backward runs after this has been reset.
_flat = ContextVar("flat", default=False)


@dataclass(frozen=True)
class Documents:
    """Borders of the documents of a flat row of T tokens.

    Attributes:
        lengths: tokens of each document; they sum to T.
        cu_seqlens: [len(lengths) + 1] int32, cumulative, on the row's device.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor) -> Documents:
        return cls(tuple(torch.diff(cu_seqlens).tolist()), cu_seqlens)


def supports_documents(model: PreTrainedModel) -> bool:
    """Whether every attention layer of `model` can be given document borders.

    Asks for the attention interface, for a decoder whose forward hands extra arguments down, and for layers that are
    all plain (full or sliding) attention: a recurrent or convolutional layer would carry state across documents.
    """
    if not getattr(model, "_supports_attention_backend", False):
        return False
    config = model.config.get_text_config(decoder=True)
    plain = {"full_attention", "sliding_attention"}
    if any(kind not in plain for kind in getattr(config, "layer_types", None) or ()):
        return False
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return False
    if any("sinks" in name for name, _ in model.named_parameters()):
        return False
    decoder = model.get_decoder()
    parameters = inspect.signature(type(decoder).forward).parameters.values()
    return decoder is not model and any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


@contextmanager
def document_attention() -> Iterator[None]:
    """While this is active, a model whose attention is `NAME` makes no masks."""
    token = _flat.set(True)
    try:
        yield
    finally:
        _flat.reset(token)


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    return None if _flat.get() else sdpa_mask(*args, **kwargs)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    documents: Documents | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, T, D], key and value [1, kv heads, T, D] -> [1, T, heads, D]."""
    if documents is None:
        if _flat.get():
            raise ModelError(
                f"{type(module).__name__} was not told where the documents of a packed row end",
                why="its model does not hand extra arguments down to its attention layers",
                fix="set attn_implementation to eager, sdpa or flash_attention_2",
            )
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and dropout == 0.0:
        return _fused(query, key, value, documents, scaling, sliding_window), None

    out = torch.empty_like(query).transpose(1, 2).contiguous() if not torch.is_grad_enabled() else None
    parts: list[Tensor] = []
    first = 0
    for length in documents.lengths:
        span = slice(first, first + length)
        windowed = sliding_window is not None and length > sliding_window
        part = F.scaled_dot_product_attention(
            query[:, :, span],
            key[:, :, span],
            value[:, :, span],
            attn_mask=_window_mask(length, sliding_window, query.device) if windowed else None,
            dropout_p=dropout,
            scale=scaling,
            is_causal=not windowed,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        if out is None:
            parts.append(part)
        else:
            out[:, span] = part
        first += length
    return torch.cat(parts, 1) if out is None else out, None


def _fused(
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, scaling: float | None, window: int | None
) -> Tensor:
    """One kernel for all documents, where the device has it."""
    from torch.nn.attention.varlen import varlen_attn

    longest = max(documents.lengths)
    query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))  # [T, heads, D]
    out = varlen_attn(
        query,
        key,
        value,
        documents.cu_seqlens,
        documents.cu_seqlens,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, Tensor)
    return out[None]


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """[length, length], true where position i may see j: i - window < j <= i."""
    assert window is not None
    i = torch.arange(length, device=device)
    distance = i[:, None] - i[None, :]
    return (distance >= 0) & (distance < window)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
