"""Values of arguments: from the text of a command line, or from what YAML made of a file."""

from __future__ import annotations

import json
from typing import Any

from trl.cli.schema import ValueType

_TRUE = ("true", "yes", "on", "1", "t", "y")
_FALSE = ("false", "no", "off", "0", "f", "n")
_NAMES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list"}


def describe(type: ValueType) -> str:
    """A type in words, for a message."""
    if type.choices:
        return "one of " + ", ".join(str(choice) for choice in type.choices)
    words = [word for kind, word in _NAMES.items() if kind in type.kinds]
    if "list" in type.kinds and type.item is not None and type.item.kinds <= {"int", "float"}:
        words[words.index("a list")] = "a list of numbers"
    if "dict" in type.kinds:
        words.append("a mapping, on the command line as JSON: '{\"key\": 1}'")
    return " or ".join(words)


def looks_boolean(text: str) -> bool:
    """Whether a word can be the value of a switch."""
    return text.lower() in _TRUE + _FALSE


def from_text(type: ValueType, text: str) -> Any:
    """Convert a word of the command line.

    Raises:
        ValueError: the word is no value of the type.
    """
    kinds = type.kinds
    if type.choices:
        return _choice(type, text)
    if "dict" in kinds and text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
    if "bool" in kinds and text.lower() in (_TRUE + _FALSE if kinds == {"bool"} else ("true", "false")):
        return text.lower() in _TRUE
    for kind, convert in (("int", int), ("float", float)):
        if kind in kinds:
            try:
                return convert(text)
            except ValueError:
                continue
    if "str" in kinds:
        return text
    raise ValueError("")


def from_words(type: ValueType, words: list[str]) -> Any:
    """Convert the words after an option that takes several.

    Raises:
        ValueError: one of them is no value of the type.
    """
    item = type.item or ValueType(frozenset({"str"}))
    return [from_text(item, word) for word in words]


def from_yaml(type: ValueType, value: Any) -> Any:
    """Check a value of a YAML file, and convert what YAML reads differently from what people mean.

    Raises:
        ValueError: it is no value of the type.
    """
    kinds = type.kinds
    if value is None:
        if type.optional:
            return None
        raise ValueError("")
    if type.choices:
        return _choice(type, str(value).lower() if isinstance(value, bool) else str(value))
    if isinstance(value, dict):
        if "dict" in kinds:
            return value
    elif isinstance(value, list):
        if "list" in kinds:
            if type.item is None or type.item_class:
                return value
            return [from_yaml(type.item, member) for member in value]
    elif isinstance(value, bool):
        if "bool" in kinds:
            return value
    elif isinstance(value, int):
        if "int" in kinds:
            return value
        if "float" in kinds:
            return float(value)
        if "str" in kinds:
            return str(value)
    elif isinstance(value, float):
        if "float" in kinds:
            return value
        if "str" in kinds:
            return str(value)
    else:  # text; YAML also has dates, which are written as text
        return from_text(type, str(value))
    raise ValueError("")


def _choice(type: ValueType, text: str) -> Any:
    for choice in type.choices:
        if str(choice) == text or (isinstance(choice, bool) and str(choice).lower() == text):
            return choice
    raise ValueError("")
