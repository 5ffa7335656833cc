"""Which kind of row is this, and is it well formed?

A row is one of four kinds, whatever file it came from:

    tokens              input_ids, optionally labels | completion_mask and/or assistant_masks
    prompt_completion   prompt and completion, both text or both lists of messages
    conversation        messages (or ShareGPT `conversations` with from/value), optionally tools, chat_template_kwargs
    text                one text column

`normalise_row` brings a row into its kind's plain shape or says which column of which row is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trl.errors import DataError

Kind = Literal["tokens", "prompt_completion", "conversation", "text"]
Message = dict[str, Any]


# Columns that hold messages when a row is conversational.
MESSAGE_COLUMNS = ("prompt", "completion", "chosen", "rejected", "messages")

# ShareGPT's names for the speakers. A role that is not listed is kept as it is.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}

SHAPES = (
    "a row holds one of: 'messages' (a list of {role, content}), 'prompt' and 'completion', 'conversations' "
    "(a list of {from, value}), a text column, or 'input_ids'"
)


@dataclass(frozen=True)
class Where:
    """A place in the data, for error messages: a source (file, folder, hub name) and a row counted from 0."""

    source: str
    row: int

    def error(self, problem: str, *, column: str | None = None, why: str = "", fix: str = "") -> DataError:
        place = f"{self.source}, row {self.row} (counted from 0)"
        if column is not None:
            place += f", column {column!r}"
        return DataError(f"{place}: {problem}", why, fix)


def is_conversational(example: Mapping[str, Any]) -> bool:
    """Whether one of the row's message columns holds a list of messages with `role` and `content`."""
    return any(_is_message_list(example.get(name), "role", "content") for name in MESSAGE_COLUMNS)


def is_conversational_from_value(example: Mapping[str, Any]) -> bool:
    """Whether the row is a ShareGPT row: `conversations` is a list of messages with `from` and `value`."""
    return _is_message_list(example.get("conversations"), "from", "value")


def _is_message_list(value: Any, *keys: str) -> bool:
    if not isinstance(value, list) or not value or not isinstance(value[0], Mapping):
        return False
    return all(key in value[0] for key in keys) or (
        keys[0] == "role" and "role" in value[0] and "tool_calls" in value[0]
    )


def maybe_convert_to_chatml(example: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `from`/`value` messages into `role`/`content` ones, and `conversations` into `messages`.

    Any other row comes back as it is. ShareGPT's speakers (human, gpt, ...) become user, assistant, ...; a
    `function_call` becomes an assistant message with `tool_calls` where its text is the JSON of a call.
    """
    converted = dict(example)
    for column in (*MESSAGE_COLUMNS, "conversations"):
        if _is_message_list(converted.get(column), "from"):
            converted[column] = [_message_from_sharegpt(message) for message in converted[column]]
    if isinstance(converted.get("conversations"), list) and converted.get("messages") is None:
        converted["messages"] = converted.pop("conversations")
        system = converted.get("system")
        # Data in this shape often keeps the system prompt in a column of its own; dropping it in silence would
        # train on another conversation than the one that was written.
        if isinstance(system, str) and system and not _starts_with_system(converted["messages"]):
            converted["messages"] = [{"role": "system", "content": system}, *converted["messages"]]
    return converted


def _starts_with_system(messages: list[Any]) -> bool:
    return bool(messages) and isinstance(messages[0], Mapping) and messages[0].get("role") == "system"


def _message_from_sharegpt(message: Any) -> Any:
    if not isinstance(message, Mapping) or "from" not in message:
        return message  # the check of the messages names what is wrong with it
    speaker, text = message["from"], message.get("value")
    if speaker == "function_call" and isinstance(text, str):
        call = _parse_call(text)
        if call is not None:
            return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
        return {"role": "assistant", "content": text}
    rest = {key: value for key, value in message.items() if key not in ("from", "value")}
    role = SHAREGPT_ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": text, **rest}


def _parse_call(text: str) -> dict[str, Any] | None:
    try:
        call = json.loads(text)
    except ValueError:
        return None
    return call if isinstance(call, dict) and {"name", "arguments"} <= call.keys() else None


def row_kind(row: Mapping[str, Any], text_field: str = "text") -> Kind | None:
    """The kind of a row by the columns that are not null, or None where none fits.

    A text field that the user named (anything but "text") wins over all but `input_ids`: what was asked is what runs.
    """
    has = {name for name, value in row.items() if value is not None}
    if "input_ids" in has:
        return "tokens"
    if text_field != "text" and text_field in has:
        return "text"
    if {"prompt", "completion"} <= has:
        return "prompt_completion"
    if "messages" in has or "conversations" in has:
        return "conversation"
    return "text" if text_field in has else None


def normalise_row(row: Mapping[str, Any], where: Where, text_field: str = "text") -> tuple[Kind, dict[str, Any]]:
    """Check a row and bring it into the plain shape of its kind.

    Returns:
        The kind, and only the columns that it uses: `text` (under that name); `prompt`, `completion`; `messages`;
        `tools` and `chat_template_kwargs` where given; `input_ids`, `labels`, `completion_mask`, `assistant_masks`.

    Raises:
        DataError: naming source, row and column, and the columns that were found.
    """
    kind = row_kind(row, text_field)
    if kind is None:
        raise _unknown_row(row, where, text_field)
    if kind == "text":
        return kind, {"text": _text(row, text_field, where)}
    if kind == "tokens":
        return kind, _token_columns(row, where)
    written = "conversations" if row.get("messages") is None else "messages"
    row = maybe_convert_to_chatml(row)
    if kind == "conversation":
        messages = row["messages"] if row.get("messages") is not None else row["conversations"]
        return kind, {"messages": check_messages(messages, where, written), **_template_inputs(row, where)}
    if isinstance(row["prompt"], str) and isinstance(row["completion"], str):
        return kind, {"prompt": row["prompt"], "completion": row["completion"]}
    if isinstance(row["prompt"], list) and isinstance(row["completion"], list):
        both = {name: check_messages(row[name], where, name) for name in ("prompt", "completion")}
        return kind, {**both, **_template_inputs(row, where)}
    types = {name: type(row[name]).__name__ for name in ("prompt", "completion")}
    odd = "prompt" if not isinstance(row["prompt"], str | list) else "completion"
    raise where.error(
        f"prompt is of type {types['prompt']} and completion of type {types['completion']}",
        column=odd,
        fix="make both text, or both lists of {role, content}",
    )


def _unknown_row(row: Mapping[str, Any], where: Where, text_field: str) -> DataError:
    found = f"the columns found are {', '.join(map(repr, row)) or 'none'}"
    expected = ("input_ids", "messages", "conversations", "prompt", "completion", text_field)
    null = [name for name in expected if name in row and row[name] is None]
    if null:
        return where.error("is null", column=null[0], why=found, fix="remove the row or give it a value")
    half = [name for name in ("prompt", "completion") if name in row]
    if len(half) == 1:
        missing = "completion" if half == ["prompt"] else "prompt"
        return where.error(
            "is missing", column=missing, why=f"{found}; {half[0]!r} alone cannot be trained on", fix=SHAPES
        )
    return where.error(
        "is missing" if text_field != "text" else "no column that can be trained on",
        column=text_field if text_field != "text" else None,
        why=found,
        fix=f"{SHAPES}; dataset_text_field names the text column (now {text_field!r})",
    )


def _text(row: Mapping[str, Any], column: str, where: Where) -> str:
    value = row[column]
    if not isinstance(value, str):
        raise where.error(f"is of type {type(value).__name__}, not text", column=column)
    return value


def check_messages(messages: Any, where: Where, column: str) -> list[Message]:
    """The messages without null fields (Arrow fills them in where messages differ in their keys).

    Raises:
        DataError: no list, an empty one, or a message without a text role or without content.
    """
    if not isinstance(messages, list):
        raise where.error(f"is of type {type(messages).__name__}, not a list of messages", column=column)
    if not messages:
        raise where.error("is an empty list of messages", column=column, fix="remove the row")
    return [_check_message(message, index, where, column) for index, message in enumerate(messages)]


def _check_message(message: Any, index: int, where: Where, column: str) -> Message:
    if not isinstance(message, Mapping):
        raise where.error(f"message {index} is of type {type(message).__name__}, not a mapping", column=column)
    keys = ", ".join(map(repr, message)) or "none"
    if "role" not in message:
        raise where.error(f"message {index} has no 'role'", column=column, why=f"its keys are {keys}")
    role = message["role"]
    if not isinstance(role, str) or not role:
        raise where.error(f"message {index}: 'role' is {role!r}, not a name", column=column)
    clean = {key: _without_nulls(value) for key, value in message.items() if value is not None}
    if "content" not in clean and clean.get("tool_calls"):
        clean["content"] = ""  # a call says nothing; templates that read the text get an empty one
    if "content" not in clean:
        state = "is null" if "content" in message else "is missing"
        raise where.error(f"message {index} ({role}): 'content' {state}", column=column, why=f"its keys are {keys}")
    if not isinstance(clean["content"], str) and not _is_text_parts(clean["content"]):
        raise where.error(
            f"message {index} ({role}): 'content' is of type {type(clean['content']).__name__}, not text",
            column=column,
        )
    return clean


def _is_text_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _template_inputs(row: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """`tools` and `chat_template_kwargs` of a row, where given; both may be JSON text."""
    inputs: dict[str, Any] = {}
    for column, wanted in (("tools", list), ("chat_template_kwargs", dict)):
        value = row.get(column)
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.strip() else None
            except ValueError as error:
                raise where.error(f"is text but not JSON ({error})", column=column) from None
        if value is None or value == [] or value == {}:
            continue
        if not isinstance(value, wanted):
            raise where.error(f"is of type {type(value).__name__}, not {wanted.__name__}", column=column)
        inputs[column] = _without_nulls(value)
    return inputs


def _token_columns(row: Mapping[str, Any], where: Where) -> dict[str, Any]:
    columns: dict[str, Any] = {"input_ids": _integers(row["input_ids"], where, "input_ids")}
    if not columns["input_ids"]:
        raise where.error("is empty", column="input_ids", fix="remove the row")
    for name in ("labels", "completion_mask", "assistant_masks"):
        if row.get(name) is None:
            continue
        columns[name] = _integers(row[name], where, name)
        if len(columns[name]) != len(columns["input_ids"]):
            raise where.error(
                f"has {len(columns[name])} entries, input_ids has {len(columns['input_ids'])}", column=name
            )
    return columns


def _integers(value: Any, where: Where, column: str) -> list[int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(i, int) for i in value):
        raise where.error("is not a list of whole numbers", column=column)
    return list(value)
