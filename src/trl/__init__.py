"""Post-training of language models in which the global batch is the contract.

How many devices, nodes, microbatches, shards and restarts a run takes is execution, and execution does not change its
result.

Importing this package imports nothing else: names are resolved when they are first used.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "clone_chat_template": "data.chat",
    "apply_chat_template": "data.chat",
    "maybe_apply_chat_template": "data.chat",
    "get_training_chat_template": "data.chat",
    "is_conversational": "data.formats",
    "is_conversational_from_value": "data.formats",
    "maybe_convert_to_chatml": "data.formats",
    "pack_dataset": "data.packing",
    "ScriptArguments": "data.arguments",
    "DatasetMixtureConfig": "data.mixture",
    "get_dataset": "data.mixture",
    "ModelConfig": "models.config",
    "get_peft_config": "models.config",
    "get_quantization_config": "models.config",
    "RichProgressCallback": "engine.console",
    "SFTConfig": "trainers.sft",
    "SFTTrainer": "trainers.sft",
    "TrlParser": "cli.parser",
    "TrlError": "errors",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'trl' has no attribute {name!r}")
    from .launch.imports import lasting_imports

    with lasting_imports():
        value = getattr(import_module(f"trl.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
