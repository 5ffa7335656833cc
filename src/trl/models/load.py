"""Models and tokenizers by name or folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import ModelError
from ..launch.environment import read_process_info

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def load_causal_lm(name: str, init: dict[str, Any] | str | None = None, **more: Any) -> Any:
    """A causal language model, fp32 weights unless asked otherwise. An adapter's folder gives its base with the
    adapter.

    Args:
        name: folder or hub name.
        init: arguments of `from_pretrained`, as a dictionary or its JSON.
        more: further ones; those of `init` win.

    Raises:
        ModelError: no such model, or `device_map` in a job of several processes (before any weight is read).
    """
    from transformers import AutoModelForCausalLM

    arguments = {"dtype": "float32", **more, **(json.loads(init) if isinstance(init, str) else init or {})}
    refuse_device_map(arguments.get("device_map"))
    arguments["dtype"] = parse_dtype(arguments["dtype"])
    if arguments.get("attn_implementation") is None:
        arguments.pop("attn_implementation", None)
    try:
        if is_adapter(name):
            return _with_adapter(name, arguments)
        model = AutoModelForCausalLM.from_pretrained(name, **arguments)
    except (OSError, ValueError, ImportError) as error:
        raise not_found("model", name, error) from error
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(f"{name} is an adapter on the hub", fix="download it and give the path of its folder")
    return model


def is_adapter(name: str) -> bool:
    """Whether a folder holds an adapter and not a whole model."""
    return (Path(name) / "adapter_config.json").is_file()


def _with_adapter(folder: str, arguments: dict[str, Any]) -> Any:
    """The base model that an adapter names, with the adapter on it, ready to be trained further."""
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM

    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    model = AutoModelForCausalLM.from_pretrained(base, **{k: v for k, v in arguments.items() if k != "revision"})
    model.enable_input_require_grads()
    return PeftModel.from_pretrained(model, folder, is_trainable=True)


def load_tokenizer(name: str, *, trust_remote_code: bool = False, revision: str | None = None) -> Any:
    """The tokenizer of a model; its padding token is its end-of-text token where it has none of its own."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, trust_remote_code=trust_remote_code, **({"revision": revision} if revision else {})
        )
    except (OSError, ValueError) as error:
        raise not_found("tokenizer", name, error) from error
    return tokenizer


def set_special_tokens(tokenizer: PreTrainedTokenizerBase, *, eos: str | None, pad: str | None) -> None:
    """Choose the end and padding tokens; both must be in the vocabulary.

    Raises:
        ModelError: a token that the tokenizer does not know.
    """
    for what, token in (("eos_token", eos), ("pad_token", pad)):
        if token is None:
            continue
        if token not in tokenizer.get_vocab():
            raise ModelError(f"{what} {token!r} is not in the tokenizer's vocabulary", fix="name one of its tokens")
        setattr(tokenizer, what, token)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def parse_dtype(dtype: Any) -> Any:
    """ "float32", "torch.float32", torch.float32, "auto" or None -> what transformers takes."""
    if dtype in (None, "auto") or isinstance(dtype, torch.dtype):
        return "auto" if dtype is None else dtype
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is unknown", fix=f"use one of {', '.join(_DTYPES)} or auto")
    return _DTYPES[name]


def refuse_device_map(device_map: Any, model: nn.Module | None = None) -> None:
    """Splitting layers over devices and one process per device exclude each other.

    Raises:
        ModelError: in a job of several processes, `device_map` is given or the model is already split by one.
    """
    world = read_process_info().world_size
    split = getattr(model, "hf_device_map", None)
    if world == 1 or (device_map is None and len(set((split or {}).values())) < 2):
        return
    raise ModelError(
        f"device_map={device_map or split!r} in a job of {world} processes",
        why="it spreads one model over all devices of the machine, while each of the processes has one device",
        fix="leave device_map out, or start a single process",
    )


def add_adapter(model: PreTrainedModel, config: PeftConfig) -> nn.Module:
    """Freeze the model and add an adapter to train.

    Quantised bases are prepared for it (norms in fp32, inputs with gradient for checkpointing).
    """
    from peft import get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    # Frozen embeddings give activations without gradient; checkpointed layers then need inputs that have one.
    model.enable_input_require_grads()
    try:
        return get_peft_model(model, config)
    except ValueError as error:  # no layer of that name, or none known for this model
        why = " ".join(str(error).split())
        raise ModelError("the adapter does not fit the model", why=why, fix="check lora_target_modules") from error


def not_found(what: str, name: str, error: Exception) -> ModelError:
    """The error for a model or tokenizer that could not be loaded."""
    if not name:
        raise ModelError(f"the model does not say where its {what} is", fix="pass processing_class")
    if Path(name).exists():
        reason = " ".join(str(error).split())
        return ModelError(
            f"the {what} in {name} cannot be loaded",
            why=reason,
            fix="check the folder, and the arguments for loading it",
        )
    return ModelError(
        f"there is no {what} {name!r}",
        why="no such folder here, and the hub did not have it or cannot be reached",
        fix="check the spelling, or give the path of a folder",
    )
