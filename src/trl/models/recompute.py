"""What activation checkpointing does not compute twice: attention.

A checkpointed layer keeps its input, [T, H], and runs again in the backward. Its matrix products cost a number of
operations in proportion to T, its attention to T^2, while the output of attention is no larger than the layer's input.
So that output is kept: memory for one more [T, H] a layer, and on long rows the dearest part of recomputation is gone
(4,096 tokens on a CPU: 15 % of a whole step).
"""

from __future__ import annotations

import types
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

# Attention kernels, by the names that torch calls them under.
_KEPT = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "torch_attn::_varlen_attn",
}


def keep_attention(model: PreTrainedModel) -> None:
    """From now on, switching on activation checkpointing for `model` keeps the outputs of attention.

    Not under attention dropout: a kernel that does not run again does not move the random numbers on either, and
    whatever draws after it in the layer would draw other ones than in the forward.
    """
    config = model.config.get_text_config(decoder=True)
    if not getattr(config, "attention_dropout", 0.0):
        model.activation_checkpointing_enable = types.MethodType(_enable, model)  # type: ignore[method-assign]


def _enable(
    self: PreTrainedModel,
    activation_checkpointing_kwargs: dict[str, Any] | None = None,
    offload: bool = False,
    **kwargs: Any,
) -> None:
    """`PreTrainedModel.activation_checkpointing_enable`. What is kept here is not seen by the hooks that offload, so
    with `offload` nothing is."""
    given = {"use_reentrant": False, **(activation_checkpointing_kwargs or {})}
    if not given["use_reentrant"] and not offload:
        given.setdefault("context_fn", _contexts)
    type(self).activation_checkpointing_enable(self, activation_checkpointing_kwargs=given, offload=offload, **kwargs)


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator.name() in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
