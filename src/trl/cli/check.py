"""Check every argument before a process is started and before torch is imported."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl.cli.commands import Command
from trl.cli.schema import Field, Schema, command_schema
from trl.cli.values import describe, from_text, from_words, from_yaml, looks_boolean
from trl.errors import ConfigError
from trl.launch.config_file import ConfigFile, find_config, read_config
from trl.launch.flags import LAUNCH_FLAGS, canonical, is_option, split_argv, split_mapping

# What other launchers call the same thing.
_OTHER_NAMES = {
    "num_processes": "nproc_per_node",
    "num_machines": "nnodes",
    "machine_rank": "node_rank",
    "main_process_ip": "master_addr",
    "main_process_port": "master_port",
    "num_gpus": "nproc_per_node",
    "hostfile": "rdzv_endpoint",
}


@dataclass(frozen=True)
class CheckedArguments:
    """What a user asked for, from the command line and the YAML file; the command line wins.

    Attributes:
        flags: torchrun flags, {name: text}.
        values: the trainer's arguments, {name: value of its type}; only those that were given.
        arguments: the trainer's arguments for a worker: `--config FILE`, then those of the command line in their plain
            form, so `--packing true` for `--packing` and `--shuffle false` for `--no-shuffle`.
        environment: variables to set, from `env:` in the file.
    """

    flags: dict[str, str]
    values: dict[str, Any]
    arguments: list[str]
    environment: dict[str, str]


def check_arguments(command: Command, argv: Sequence[str]) -> CheckedArguments:
    """Check the arguments of a command.

    Args:
        command: the command.
        argv: its arguments.

    Raises:
        ConfigError: an unknown argument, a value of the wrong type, a file that cannot be read, something missing.
            All mistakes of the command line and the file are in one message.
    """
    path, rest = find_config(argv)
    flags, rest = split_argv(rest)
    schema = command_schema(command)
    problems: list[str] = []
    from_file: dict[str, Any] = {}
    file_flags: dict[str, str] = {}
    environment: dict[str, str] = {}
    if path is not None:
        config = read_config(path)
        environment = config.environment
        file_flags, left = _split_file(config)
        from_file = _check_file(schema, config, left, problems)
    words: list[str] = [] if path is None else ["--config", path]
    given = _check_words(schema, rest, problems, words)
    values = {**from_file, **given}
    if problems:
        raise ConfigError("\n".join(problems), fix=f"`trl {command.name} --help` lists every argument")
    _check_required(command, values)
    return CheckedArguments({**file_flags, **flags}, values, words, environment)


def check_early(values: dict[str, Any]) -> None:
    """Say at once what would otherwise be found after torch is imported: a local file or folder that is not there.

    Raises:
        ConfigError: a model or data set that is written like a path and does not exist, or an output folder that
            is a file.
    """
    for name in ("model_name_or_path", "dataset_name"):
        value = values.get(name)
        if isinstance(value, str) and _is_written_like_a_path(value) and not Path(value).expanduser().exists():
            raise ConfigError(f"--{name}: there is no file or folder {value}", fix="check the spelling and the folder")
    if values.get("dataset_streaming") and (values.get("max_steps") or 0) <= 0:
        raise ConfigError("--dataset_streaming needs --max_steps: a stream has no end that is known")
    output = values.get("output_dir")
    if output is not None and (not output or Path(output).expanduser().is_file()):
        raise ConfigError(
            f"--output_dir is {output!r}, which is no folder", fix="name a folder; it is made if missing"
        )


def _is_written_like_a_path(text: str) -> bool:
    """A hub name is `name` or `owner/name`; everything else can only be local."""
    return (
        text.startswith((".", "/", "~"))
        or text.count("/") > 1
        or text.endswith((".jsonl", ".json", ".csv", ".parquet"))
    )


def check_batch(values: dict[str, Any], processes: int | None) -> None:
    """Solve the batch plan once before anything is started.

    Args:
        processes: of the whole job; None where they are not all of this machine.

    Raises:
        BatchError: the numbers contradict each other.
    """
    from trl.layout.plan import make_plan

    make_plan(
        world_size=processes or 1,
        global_batch_size=values.get("global_batch_size"),
        per_device=values.get("per_device_train_batch_size"),
        # without the number of processes, only numbers below 1 can be told
        accumulation=values.get("gradient_accumulation_steps") if processes else None,
    )


def _split_file(config: ConfigFile) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        return split_mapping(config.values, config.texts)
    except ConfigError as error:
        raise ConfigError(f"{config.path}: {error.what}", error.why, error.fix) from None


def _check_file(schema: Schema, config: ConfigFile, values: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, value in values.items():
        field = schema.fields.get(key)
        if field is None:
            problems.append(f"{config.where(key)}: unknown key {key}{_suggestion(key, schema, '')}")
            continue
        try:
            checked[key] = from_yaml(field.type, value)
        except ValueError as error:
            problems.append(f"{config.where(key)}: {_wrong_type(key, field, repr(value), error)}")
        problems += [
            f"{config.where(key)}: {problem}" for problem in _check_members(schema.members.get(key), key, value)
        ]
    return checked


def _check_members(fields: dict[str, Field] | None, key: str, value: Any) -> list[str]:
    """Mistakes in a list whose members are mappings with known keys, such as `datasets`."""
    if fields is None or not isinstance(value, list):
        return []
    problems = []
    for position, member in enumerate(value):
        place = f"{key}[{position}]"
        if not isinstance(member, dict):
            problems.append(f"{place} is a mapping with the keys {', '.join(fields)}, not {member!r}")
            continue
        for name in member:
            if name not in fields:
                near = difflib.get_close_matches(str(name), fields, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(fields)}"
                problems.append(f"{place}: unknown key {name}{hint}")
        problems += [f"{place}: {name} is missing" for name in fields if _is_missing(fields[name], member)]
    return problems


def _is_missing(field: Field, member: dict[str, Any]) -> bool:
    return field.default is None and field.name not in member


def _check_words(schema: Schema, words: list[str], problems: list[str], plain: list[str]) -> dict[str, Any]:
    """Values of the words of a command line; adds to `problems`, and to `plain` the words in their plain form."""
    checked: dict[str, Any] = {}
    position = 0
    while position < len(words):
        spelling, equals, attached = words[position].partition("=")
        position += 1
        if not is_option(spelling) or not spelling.startswith("--"):
            problems.append(f"unexpected argument {spelling!r}: every argument has a name, as in --output_dir out")
            continue
        following = [attached] if equals else []
        while not equals and position < len(words) and not is_option(words[position]):
            following.append(words[position])
            position += 1
        name = canonical(spelling)
        field, negated = _find_field(schema, name)
        if field is None:
            problems.append(f"unknown argument {spelling}{_suggestion(name, schema, '--')}")
            continue
        try:
            checked[field.name] = _convert(field, spelling, negated, following)
            plain += [f"--{field.name}", *(following or ["false" if negated else "true"])]
        except ConfigError as error:
            problems.append(error.what)
        except ValueError as error:
            problems.append(_wrong_type(spelling, field, repr(" ".join(following)), error))
    return checked


def _find_field(schema: Schema, name: str) -> tuple[Field | None, bool]:
    if name in schema.fields:
        return schema.fields[name], False
    positive = schema.fields.get(name.removeprefix("no_")) if name.startswith("no_") else None
    return (positive, True) if positive is not None and "bool" in positive.type.kinds else (None, False)


def _convert(field: Field, spelling: str, negated: bool, words: list[str]) -> Any:
    type = field.type
    if type.item_class:
        raise ConfigError(f"{spelling} holds lists of settings and is given in the YAML file, as `{field.name}:`")
    if negated:
        if words:
            raise ConfigError(f"{spelling} takes no value, but {' '.join(words)!r} was given")
        return False
    if not words:
        if "bool" in type.kinds:
            return True
        raise ConfigError(f"{spelling} needs a value: {describe(type)}")
    if "list" in type.kinds and "str" not in type.kinds:  # `str | list` takes a list from a file only
        return from_words(type, words)
    if len(words) > 1:
        # `--packing file.json`: a switch without a value, before a word that belongs to nothing
        extra = words if type.kinds == {"bool"} and not looks_boolean(words[0]) else words[1:]
        raise ConfigError(f"{spelling} takes one value; what is {' '.join(extra)!r}?")
    return from_text(type, words[0])


def _wrong_type(name: str, field: Field, value: str, error: ValueError) -> str:
    detail = f" ({error})" if str(error) else ""
    return f"{name} takes {describe(field.type)}, not {value}{detail}"


def _suggestion(name: str, schema: Schema, dashes: str) -> str:
    if name in _OTHER_NAMES:
        return f"; here it is called {dashes}{_OTHER_NAMES[name]}"
    near = difflib.get_close_matches(name, [*schema.fields, *LAUNCH_FLAGS, "config"], n=1, cutoff=0.7)
    return f"; did you mean {dashes}{near[0]}?" if near else ""


def _check_required(command: Command, values: dict[str, Any]) -> None:
    for group in command.required:
        if not any(values.get(name) for name in group):
            wanted = " or ".join(
                f"--{name}" if name != "datasets" else "`datasets:` in the YAML file" for name in group
            )
            raise ConfigError(
                f"trl {command.name} needs {wanted}.", fix=f"for example: trl {command.name} {command.example}"
            )
