"""The policy: token log-probabilities of a model over a batch. The only place that touches logits.

It hides from an algorithm how a batch is laid out (padded or flat), whether the head is applied to every position
(never: only to supervised ones, a chunk at a time), and whether the model is wrapped (DDP, adapters).

The head runs *inside* the model's own forward, not after it: a wrapper that gathers parameters (FSDP2, ZeRO-3) or arms
gradient reduction (DDP) then covers the head too. Elsewhere a loss taken on the unwrapped model has silently skipped
the all-reduce.
"""

from __future__ import annotations

import inspect
import types
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ..errors import ModelError
from ..layout.labels import IGNORE
from ..losses.token import (
    HeadShape,
    TokenLoss,
    TokenLossKind,
    linear_token_loss,
    token_loss_from_logps,
)
from .documents import NAME as DOCUMENTS
from .documents import Documents, document_attention, supports_documents
from .recompute import keep_attention

Batch = dict[str, Tensor]


def base_causal_lm(model: nn.Module) -> PreTrainedModel:
    """The causal language model inside adapters."""
    unwrap: Any = getattr(model, "get_base_model", None)  # PEFT's
    inner = model if unwrap is None else unwrap()
    if not isinstance(inner, PreTrainedModel) or inner.get_output_embeddings() is None:
        raise ModelError(
            f"{type(inner).__name__} is not a causal language model", fix="pass an AutoModelForCausalLM or its name"
        )
    return inner


def choose_layout(model: nn.Module, *, packing: bool, padding_free: bool) -> Literal["flat", "padded"]:
    """How batches for this model lie in memory: "flat" (documents end to end) or "padded".

    Flat wherever attention can be told the documents' borders, since it computes nothing for padding. A model on
    transformers' SDPA is switched to document attention, which is SDPA per document.

    Raises:
        ModelError: packing or padding_free was asked for and some layer would carry state across documents.
    """
    inner = base_causal_lm(model)
    implementation = inner.config._attn_implementation
    if supports_documents(inner):
        if implementation == "sdpa":
            inner.set_attn_implementation(DOCUMENTS)
        if implementation in ("sdpa", DOCUMENTS) or implementation.startswith("flash_attention"):
            return "flat"
        return "flat" if padding_free else "padded"
    if packing or padding_free:
        raise ModelError(
            f"{type(inner).__name__} cannot train on packed documents",
            why="some of its layers cannot be told where one document ends and the next begins",
            fix="set packing and padding_free to false",
        )
    return "padded"


class Policy:
    """A model as an algorithm sees it.

    Args:
        model: the causal language model, with or without adapters, not yet wrapped for distribution.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        inner = base_causal_lm(model)
        if "supervised" not in inspect.signature(inner.forward).parameters:
            inner.forward = types.MethodType(_forward, inner)
            keep_attention(inner)

    def token_loss(self, wrapped: nn.Module, batch: Batch, kind: TokenLossKind = "nll") -> TokenLoss:
        """Sum of token losses over the supervised positions of `batch`.

        Args:
            wrapped: the model as the trainer runs it (DDP, FSDP, ... or the model itself).
            batch: what `data.collate.TokenCollator` makes.
        """
        targets = batch["shift_labels"].flatten()
        index = torch.nonzero(targets != IGNORE).squeeze(1)
        inputs, context = model_inputs(self.model, batch)
        with context:
            out = wrapped(**inputs, supervised=index, targets=targets[index], loss_kind=kind)
        return TokenLoss(out["total"], out["logps"], out["correct"])

    def outputs(self, wrapped: nn.Module, batch: Batch) -> Any:
        """The model's own output, full logits included: for loss functions and metrics of the user's."""
        inputs, context = model_inputs(self.model, batch)
        with context:
            return wrapped(**inputs)


def model_inputs(model: nn.Module, batch: Batch) -> tuple[dict[str, Any], Any]:
    """Arguments of the model's forward for a collated batch, and the context to call it in."""
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "use_cache": False}
    if "position_ids" in batch:
        inputs["position_ids"] = batch["position_ids"]
    elif (mask := batch.get("attention_mask")) is not None and not mask[:, 0].all():
        # Only left padding needs a mask. Padding on the right comes after every real token, so causal attention never
        # sees it; masking it would cost the mask-free kernel, and under a sliding window it leaves padding with
        # nothing to attend to: NaN, which times a weight of 0 is still NaN.
        inputs["attention_mask"] = mask
    if "cu_seqlens" not in batch:
        return inputs, nullcontext()
    implementation = base_causal_lm(model).config._attn_implementation
    documents = Documents.from_cu_seqlens(batch["cu_seqlens"])
    if implementation == DOCUMENTS:
        return {**inputs, "documents": documents}, document_attention()
    if implementation.startswith("flash_attention"):
        longest = max(documents.lengths)
        borders = {"cu_seq_lens_q": documents.cu_seqlens, "cu_seq_lens_k": documents.cu_seqlens}
        return {**inputs, **borders, "max_length_q": longest, "max_length_k": longest}, nullcontext()
    return inputs, nullcontext()  # transformers reads the borders from position_ids that start again at 0


def _forward(
    self: PreTrainedModel,
    *args: Any,
    supervised: Tensor | None = None,
    targets: Tensor | None = None,
    loss_kind: TokenLossKind = "nll",
    **kwargs: Any,
) -> Any:
    """A causal LM's forward that returns token losses when told which positions are supervised, else its own output.

    A method, bound to the instance: a copy of the model gets one bound to the copy.
    """
    if supervised is None or targets is None:
        return type(self).forward(self, *args, **kwargs)
    kwargs.pop("labels", None)  # adapters pass the argument on even where it is None
    hidden_BTH = self.get_decoder()(*args, **kwargs).last_hidden_state
    hidden_NH = hidden_BTH.flatten(0, 1).index_select(0, supervised)
    return _head_loss(self, hidden_NH, targets, loss_kind)._asdict()


def _head_loss(model: PreTrainedModel, hidden_NH: Tensor, targets_N: Tensor, kind: TokenLossKind) -> TokenLoss:
    head = model.get_output_embeddings()
    shape = head_shape(model)
    if type(head) is nn.Linear:
        return linear_token_loss(hidden_NH, head.weight, targets_N, bias_V=head.bias, kind=kind, shape=shape)
    # A head with adapters or quantised weights: its own forward, a chunk at a time, recomputed in the backward.
    rows = max(32, 2**24 // model.config.get_text_config(decoder=True).vocab_size)
    chunks = [
        checkpoint(_dense_logps, head, h, t, shape, use_reentrant=False)
        for h, t in zip(hidden_NH.split(rows), targets_N.split(rows), strict=True)
    ]
    logps = torch.cat([c[0] for c in chunks]) if chunks else hidden_NH.sum(1)
    correct = torch.cat([c[1] for c in chunks]) if chunks else torch.zeros_like(targets_N, dtype=torch.bool)
    return TokenLoss(token_loss_from_logps(logps, kind), logps.detach(), correct)


def _dense_logps(head: nn.Module, hidden_NH: Tensor, targets_N: Tensor, shape: HeadShape) -> tuple[Tensor, Tensor]:
    logits = head(hidden_NH)
    logits = (logits if logits.dtype == torch.float64 else logits.float()) * shape.scale
    if shape.softcap is not None:
        logits = torch.tanh(logits / shape.softcap) * shape.softcap
    target = logits.gather(1, targets_N[:, None]).squeeze(1)
    return target - torch.logsumexp(logits, 1), target >= logits.amax(1)


def head_shape(model: PreTrainedModel) -> HeadShape:
    """What the model's forward does to its logits after the head, from its config."""
    config = model.config.get_text_config(decoder=True)
    scale = getattr(config, "logit_scale", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return HeadShape(float(scale), getattr(config, "final_logit_softcapping", None))
