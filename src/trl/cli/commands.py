"""The commands of `trl`: one table, from which help, checks and launching are derived."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ArgumentClass:
    """A dataclass whose fields are arguments of a command.

    Attributes:
        file: where it is defined, from the folder of the package.
        name: its name.
        title: what its fields are about, as a heading of the help.
    """

    file: str
    name: str
    title: str


@dataclass(frozen=True)
class Command:
    """A command that trains, in as many processes as asked for.

    Attributes:
        name: what is typed after `trl`.
        summary: one line.
        example: arguments of a small complete run.
        classes: where its arguments are defined; its own configuration first.
        first: the arguments that matter most, shown first.
        required: of each group, one argument has to be given.
        worker: module that each process runs, with the name of the command and its arguments.
    """

    name: str
    summary: str
    example: str
    classes: tuple[ArgumentClass, ...]
    first: tuple[str, ...]
    required: tuple[tuple[str, ...], ...]
    worker: str = "trl.cli.worker"


_DATA = ArgumentClass("data/arguments.py", "ScriptArguments", "Data")
_MIXTURE = ArgumentClass("data/mixture.py", "DatasetMixtureConfig", "Mixtures of data sets")
_MODEL = ArgumentClass("models/config.py", "ModelConfig", "Model and adapters")

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(
            name="sft",
            summary="Supervised fine-tuning: teach a model to continue texts or to answer prompts.",
            example="--model_name_or_path MODEL --dataset_name train.jsonl --output_dir out",
            classes=(
                ArgumentClass("trainers/sft.py", "SFTConfig", "Supervised fine-tuning"),
                _MODEL,
                _DATA,
                _MIXTURE,
            ),
            first=(
                "model_name_or_path",
                "dataset_name",
                "output_dir",
                "config",
                "nproc_per_node",
                "global_batch_size",
                "per_device_train_batch_size",
                "learning_rate",
                "num_train_epochs",
                "max_length",
            ),
            required=(("model_name_or_path",), ("dataset_name", "datasets")),
        ),
    )
}


@dataclass(frozen=True)
class Tool:
    """A command that trains nothing: `main(argv) -> exit code` of a module."""

    name: str
    summary: str
    module: str


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (Tool("diff", "At which step two runs part, and what they were told differently.", "trl.cli.diff"),)
}
