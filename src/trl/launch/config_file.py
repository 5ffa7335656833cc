"""The YAML file given by `--config`: read once, with the line of every key kept for messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl.errors import ConfigError

# YAML 1.1, which PyYAML reads, takes 2e-5 for text because it has no dot. Everybody who writes it means a number.
_FLOAT_WITHOUT_DOT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+\Z")


@dataclass(frozen=True)
class ConfigFile:
    """The top level of a YAML file.

    Attributes:
        path: the file, as it was given.
        values: {key: value}; keys with underscores.
        texts: {key: the scalar as it is written}, for scalar values only.
        lines: {key: line number, from 1}.
        environment: the mapping under `env:`, as text.
    """

    path: str
    values: dict[str, Any]
    texts: dict[str, str]
    lines: dict[str, int]
    environment: dict[str, str]

    def where(self, key: str) -> str:
        """`file:line` of a key, for a message."""
        return f"{self.path}:{self.lines[key]}"


def find_config(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take `--config FILE` or `--config=FILE` out of a command line.

    Returns:
        path: the file, or None; where the option is repeated, the last one.
        rest: all other arguments.

    Raises:
        ConfigError: `--config` without a file.
    """
    path: str | None = None
    rest: list[str] = []
    tokens = iter(argv)
    for token in tokens:
        if token == "--config":
            path = next(tokens, None)
            if path is None or path.startswith("--"):
                raise ConfigError("--config needs a YAML file.", fix="trl sft --config sft.yaml")
        elif token.startswith("--config="):
            path = token.partition("=")[2]
        else:
            rest.append(token)
    return path, rest


def read_config(path: str) -> ConfigFile:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file is missing, is not YAML (with the line), has no mapping at its top, or a key twice.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_WITHOUT_DOT, list("-+0123456789"))

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"The file given by --config cannot be read: {path}", why=reason) from None
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return ConfigFile(path, {}, {}, {}, {})
        if not isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1
            raise ConfigError(f"{path}:{line}: expected `key: value` lines, found something else.")
        entries = [(loader.construct_object(key, deep=True), key, value) for key, value in node.value]
        values = {key: loader.construct_object(value, deep=True) for key, _, value in entries}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None

    renamed: dict[str, Any] = {}
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    for key, key_node, value_node in entries:
        line = key_node.start_mark.line + 1
        name = str(key).replace("-", "_")
        if name in renamed:
            raise ConfigError(f"{path}:{line}: {key} is given twice; the first is in line {lines[name]}.")
        renamed[name], lines[name] = values[key], line
        if isinstance(value_node, yaml.ScalarNode):
            texts[name] = value_node.value
    environment = _environment(renamed.pop("env", None), path, lines)
    return ConfigFile(path, renamed, texts, lines, environment)


def _environment(value: Any, path: str, lines: dict[str, int]) -> dict[str, str]:
    if value is None:
        return {}
    scalars = (str, int, float, bool)
    if not isinstance(value, dict) or not all(isinstance(item, scalars) for item in value.values()):
        raise ConfigError(
            f"{path}:{lines['env']}: env holds environment variables, one `NAME: value` a line.",
            fix='write\n    env:\n      NAME: "value"',
        )
    return {str(name): str(item) for name, item in value.items()}
