"""Supervised fine-tuning: the mean negative log-likelihood of the supervised tokens of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..data.chat import clone_chat_template
from ..data.collate import TokenCollator
from ..data.prepare import PrepareOptions, prepare
from ..data.sources import as_dataset
from ..data.stream import prepare_stream
from ..engine.algorithm import Loss
from ..engine.config import TrainerConfig
from ..engine.loader import is_stream
from ..engine.trainer import ContractTrainer
from ..errors import ConfigError, ModelError
from ..layout.labels import IGNORE
from ..losses.token import TokenLossKind
from ..models.load import add_adapter, load_causal_lm, load_tokenizer, refuse_device_map, set_special_tokens
from ..models.policy import Batch, Policy, choose_layout

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback


@dataclass
class SFTConfig(TrainerConfig):
    """Arguments of supervised fine-tuning."""

    learning_rate: float = 2e-5
    """Initial learning rate. For LoRA about ten times as much."""
    router_aux_loss_coef: float | None = None
    """Weight of the load-balancing loss of mixture-of-experts models."""
    chat_template_path: str | None = None
    """A Jinja file, or the folder or hub name of a tokenizer, whose chat template replaces the model's."""
    dataset_text_field: str = "text"
    """Column that holds the text of plain-text rows."""
    dataset_kwargs: dict[str, Any] | str | None = None
    """Further arguments of data preparation; skip_prepare_dataset: the rows are used as they are."""
    eos_token: str | None = None
    """Token that ends a text; by default the tokenizer's."""
    max_length: int | None = 1024
    """Longest row in tokens; longer ones are truncated. With packing, the length of a packed row. `null` in YAML sets
    no limit."""
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"
    """Which end of a long row is kept: keep_start or keep_end."""
    shuffle_dataset: bool = False
    """Shuffle the rows before they are prepared, which changes what is packed together."""
    packing: bool = False
    """Put several documents into one row of max_length tokens. They never see each other."""
    packing_strategy: Literal["bfd", "bfd_split", "wrapped"] = "bfd"
    """bfd: best fit decreasing, documents stay whole. bfd_split: long documents are split before. wrapped: documents
    are cut where a row is full."""
    padding_free: bool = False
    """Lay the rows of a batch end to end instead of padding them. The default attention does so anyway; this insists
    on it for others."""
    eval_packing: bool | None = None
    """Pack the evaluation rows; by default as packing."""
    completion_only_loss: bool | None = None
    """Learn the completion only. By default where rows have a prompt and a completion."""
    assistant_only_loss: bool = False
    """Learn only what the assistant says, in every turn of a conversation."""
    loss_type: Literal["nll", "dft"] = "nll"
    """nll: negative log-likelihood. dft: each token weighted by its own probability."""
    pad_token: str | None = None
    """Token for padding; by default the tokenizer's, else its end token."""

    _VALID_DICT_FIELDS = [*TrainerConfig._VALID_DICT_FIELDS, "dataset_kwargs"]  # noqa: RUF012

    def __post_init__(self) -> None:
        choices = {
            "loss_type": ("nll", "dft"),
            "packing_strategy": ("bfd", "bfd_split", "wrapped"),
            "truncation_mode": ("keep_start", "keep_end"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", fix=f"use one of {', '.join(allowed)}")
        if self.packing and self.max_length is None:
            raise ConfigError("packing needs max_length: the length of a packed row")
        if self.router_aux_loss_coef:
            raise ConfigError(
                "router_aux_loss_coef is set, but the load-balancing loss is not part of this version",
                why="it is a statistic of the whole global batch, not a sum over microbatches",
                fix="leave it out",
            )
        super().__post_init__()


class SFT:
    """Mean over supervised tokens.

    Args:
        kind: the loss of one token, see `losses.token`.
    """

    unit: Literal["tokens", "sequences"] = "tokens"

    def __init__(self, kind: TokenLossKind = "nll"):
        self.kind = kind

    def count(self, batch: Batch) -> Tensor:
        return (batch["shift_labels"] != IGNORE).sum()

    def loss(self, policy: Policy, model: nn.Module, batch: Batch) -> Loss:
        loss = policy.token_loss(model, batch, self.kind)
        tokens = torch.tensor(float(len(loss.logps)), device=loss.total.device)
        return Loss(loss.total, {"mean_token_accuracy": (loss.correct.sum(), tokens)})


class SFTTrainer(ContractTrainer):
    """Fine-tune a causal language model on texts, prompts with completions, or conversations.

    Args:
        model: folder or hub name, a `PreTrainedModel`, or a `PeftModel`.
        args: the configuration; by default `SFTConfig()`.
        data_collator: rows to a batch with `input_ids` and `shift_labels`; by default `TokenCollator`.
        train_dataset, eval_dataset: `datasets.Dataset` or `IterableDataset` in one of the supported row formats;
        `eval_dataset`
            may be a dictionary of them.
        processing_class: the tokenizer; by default that of the model.
        compute_loss_func: `f(outputs, labels, num_items_in_batch)` returning a sum divided by that number; it sees
        full logits.
        compute_metrics: `f(EvalPrediction) -> dict`, over all rows of an evaluation.
        callbacks, optimizers, optimizer_cls_and_kwargs, preprocess_logits_for_metrics: as in `transformers.Trainer`.
        quantization_config: for a model given by name.
        peft_config: train an adapter of this kind instead of the model.
        formatting_func: a row -> its text.
    """

    args: SFTConfig

    def __init__(
        self,
        model: str | PreTrainedModel | nn.Module,
        args: SFTConfig | None = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        quantization_config: Any = None,
        peft_config: PeftConfig | None = None,
        formatting_func: Callable[[dict[str, Any]], str] | None = None,
    ):
        args = args if args is not None else SFTConfig()
        net, name = _load(model, args, quantization_config)
        tokenizer = processing_class or load_tokenizer(name, trust_remote_code=args.trust_remote_code)
        set_special_tokens(tokenizer, eos=args.eos_token, pad=args.pad_token)
        if args.chat_template_path is not None:
            net, tokenizer, _ = clone_chat_template(net, tokenizer, args.chat_template_path)
        if peft_config is not None:
            if hasattr(net, "peft_config"):
                raise ModelError(
                    f"{name} is an adapter, and peft_config (use_peft) asks for a new one",
                    why="the new one would take the place of what the adapter has learnt",
                    fix="leave peft_config out to train the adapter further, or merge it into its base first",
                )
            net = add_adapter(net, peft_config)
        layout = choose_layout(net, packing=args.packing, padding_free=args.padding_free)
        _warn_beyond_positions(net, args)
        self._rows = rows = _Rows(args, tokenizer, formatting_func)
        collator = data_collator or TokenCollator(tokenizer.pad_token_id, layout, args.pad_to)
        eval_packing = args.packing if args.eval_packing is None else args.eval_packing
        super().__init__(
            SFT(args.loss_type),
            net,
            args,
            layout=layout,
            data_collator=collator,
            train_dataset=rows.prepared(train_dataset, "train_dataset", args.packing),
            eval_dataset=_each(eval_dataset, lambda d, n: rows.prepared(d, n, eval_packing)),
            processing_class=tokenizer,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )

    def prepared(self, rows: Any) -> Any:
        if is_stream(rows) or "input_ids" in (getattr(rows, "column_names", None) or ["input_ids"]):
            return rows
        packing = self.args.packing if self.args.eval_packing is None else self.args.eval_packing
        return self._rows.prepared(rows, "eval_dataset", packing)


def _warn_beyond_positions(model: Any, args: SFTConfig) -> None:
    """Rows longer than the positions a model was made for are trained on, but it should be known."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if args.process_index == 0 and positions and (args.max_length is None or args.max_length > positions):
        print(
            f"warning: max_length is {args.max_length}, but the model was made for {positions} positions", flush=True
        )


def _load(model: Any, args: SFTConfig, quantization_config: Any) -> tuple[Any, str]:
    """The model object, and the name its tokenizer is found under."""
    if isinstance(model, str):
        more = {"trust_remote_code": args.trust_remote_code}
        if quantization_config is not None:
            more["quantization_config"] = quantization_config
        return load_causal_lm(model, args.model_init_kwargs, **more), model
    for what, value in (("model_init_kwargs", args.model_init_kwargs), ("quantization_config", quantization_config)):
        if value is not None:
            raise ModelError(f"{what} is given, but the model is already loaded", fix="pass the model's name")
    refuse_device_map(None, model)
    return model, model.config.name_or_path


@dataclass
class _Rows:
    """Preparation of this trainer's data sets."""

    args: SFTConfig
    tokenizer: Any
    formatting_func: Callable[[dict[str, Any]], str] | None

    def log(self, line: str) -> None:
        if self.args.process_index == 0:
            print(line, file=sys.stderr, flush=True)

    def prepared(self, rows: Any, source: str, packing: bool) -> Any:
        args = self.args
        more = dict(args.dataset_kwargs or {}) if not isinstance(args.dataset_kwargs, str) else {}
        if rows is None or more.pop("skip_prepare_dataset", False):
            return rows
        rows = as_dataset(rows, source)
        if more:
            raise ConfigError(
                f"dataset_kwargs has unknown keys: {', '.join(more)}", fix="only skip_prepare_dataset is known"
            )
        if args.shuffle_dataset:
            rows = rows.shuffle(seed=args.seed)
        options = PrepareOptions(
            max_length=args.max_length,
            truncation_mode=args.truncation_mode,
            completion_only_loss=args.completion_only_loss,
            assistant_only_loss=args.assistant_only_loss,
            dataset_text_field=args.dataset_text_field,
            formatting_func=self.formatting_func,
            packing=args.packing_strategy if packing else None,
        )
        if is_stream(rows):
            return prepare_stream(rows, self.tokenizer, options, source=source, log=self.log)
        return prepare(rows, self.tokenizer, options, source=source, num_proc=args.dataset_num_proc, log=self.log)


def _each(rows: Any, prepare_one: Callable[[Any, str], Any]) -> Any:
    if isinstance(rows, dict) and not hasattr(rows, "column_names"):
        return {name: prepare_one(part, f"eval_dataset[{name!r}]") for name, part in rows.items()}
    return prepare_one(rows, "eval_dataset")
