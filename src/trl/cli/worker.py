"""What each process of `trl sft ...` runs: arguments to a trainer, training, the model on disk.

python -m trl.cli.worker sft --model_name_or_path MODEL --dataset_name train.jsonl
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, DataError
from ..launch.environment import read_process_info
from ..launch.failure import record_failures
from ..launch.imports import lasting_imports


def main(argv: list[str]) -> int:
    """Run one command in this process.

    Args:
        argv: the command's name and its arguments.

    Returns:
        The exit code.
    """
    with record_failures():
        name, *words = argv
        with lasting_imports():
            quiet_upstream()
        COMMANDS[name](words)
    return 0


def sft(words: list[str]) -> None:
    """`trl sft`: supervised fine-tuning."""
    with lasting_imports():
        from ..data.arguments import ScriptArguments
        from ..data.mixture import DatasetMixtureConfig
        from ..models.config import ModelConfig, get_peft_config, get_quantization_config
        from ..trainers.sft import SFTConfig, SFTTrainer

    script, config, model, mixture = parse((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig), words)
    rows = load_rows(script, mixture)
    config.model_init_kwargs = model_arguments(model, config)
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=config,
        train_dataset=rows[script.dataset_train_split],
        eval_dataset=evaluation_rows(rows, script, config),
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    run(trainer)


def quiet_upstream() -> None:
    """Bars of transformers (loading, saving) only where someone sees them move, and once for a node; no warnings of
    one library about the names that another uses."""
    from transformers.utils import logging

    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)

    if read_process_info().local_rank or not sys.stderr.isatty():
        logging.disable_progress_bar()


def parse(types: tuple[type, ...], words: list[str]) -> tuple[Any, ...]:
    """The dataclasses of a command; whatever they refuse is the user's to mend."""
    from .parser import TrlParser

    try:
        return TrlParser(types).parse_args_and_config(words)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(" ".join(str(error).split())) from error


def load_rows(script: Any, mixture: Any) -> Any:
    """{split: rows} from `datasets:` or `--dataset_name`."""
    from ..data.mixture import get_dataset
    from ..data.sources import load_dataset_dict

    if mixture.datasets:
        return get_dataset(mixture)
    return load_dataset_dict(
        script.dataset_name,
        config=script.dataset_config,
        train_split=script.dataset_train_split,
        test_split=script.dataset_test_split,
        streaming=script.dataset_streaming,
    )


def evaluation_rows(rows: Any, script: Any, config: Any) -> Any:
    """The rows to evaluate on, where evaluation is asked for."""
    if config.eval_strategy == "no" and not config.do_eval:
        return None
    if script.dataset_test_split not in rows:
        raise DataError(
            f"eval_strategy is {config.eval_strategy.value}, but the data has no split {script.dataset_test_split!r}",
            why=f"it has {', '.join(map(repr, rows))}",
            fix="name the split with --dataset_test_split, or leave --eval_strategy out",
        )
    return rows[script.dataset_test_split]


def model_arguments(model: Any, config: Any) -> dict[str, Any]:
    """Arguments of `from_pretrained`: those of the model options, then the user's own."""
    own = {"revision": model.model_revision, "dtype": model.dtype, "attn_implementation": model.attn_implementation}
    return {**own, **(config.model_init_kwargs or {})}


def run(trainer: Any) -> None:
    """Train, evaluate at the end where asked, save."""
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    trainer.save_model(trainer.args.output_dir)
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    if trainer.is_world_process_zero():
        trainer.save_state()
        trainer.console.say(f"model saved in {trainer.args.output_dir}")


COMMANDS: dict[str, Callable[[list[str]], None]] = {"sft": sft}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
