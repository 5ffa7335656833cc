"""Which kind of row, and what is said about a bad one."""

from __future__ import annotations

from typing import Any

import pytest

from trl.data.formats import (
    Where,
    is_conversational,
    is_conversational_from_value,
    maybe_convert_to_chatml,
    normalise_row,
    row_kind,
)
from trl.errors import DataError

WHERE = Where("train.jsonl", 3)
USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}
SHAREGPT = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes."}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "a"}, "text"),
        ({"prompt": "a", "completion": "b"}, "prompt_completion"),
        ({"prompt": "a", "completion": "b", "text": "ab"}, "prompt_completion"),
        ({"messages": [USER]}, "conversation"),
        ({"conversations": SHAREGPT}, "conversation"),
        ({"messages": [USER], "text": "a"}, "conversation"),
        ({"messages": None, "text": "a"}, "text"),
        ({"input_ids": [1], "text": "a"}, "tokens"),
        ({"story": "a"}, None),
        ({"prompt": "a"}, None),
    ],
)
def test_kind(row: dict[str, Any], kind: str | None) -> None:
    assert row_kind(row) == kind


def test_a_named_text_field_wins_over_messages() -> None:
    assert row_kind({"messages": [USER], "story": "a"}, "story") == "text"
    assert normalise_row({"story": "a"}, WHERE, "story") == ("text", {"text": "a"})


def test_conversational() -> None:
    assert is_conversational({"messages": [USER]})
    assert is_conversational({"prompt": [USER], "completion": [ASSISTANT]})
    assert is_conversational({"chosen": [ASSISTANT], "rejected": [ASSISTANT]})
    assert not is_conversational({"prompt": "Hi"})
    assert not is_conversational({"messages": []})
    assert not is_conversational({"conversations": SHAREGPT})
    assert is_conversational_from_value({"conversations": SHAREGPT})
    assert not is_conversational_from_value({"conversations": [USER]})
    assert not is_conversational_from_value({"messages": [USER]})


def test_sharegpt_becomes_messages() -> None:
    assert maybe_convert_to_chatml({"conversations": SHAREGPT, "id": 1}) == {"messages": [USER, ASSISTANT], "id": 1}
    assert maybe_convert_to_chatml({"conversations": [USER]}) == {"messages": [USER]}
    assert maybe_convert_to_chatml({"prompt": SHAREGPT[:1], "completion": SHAREGPT[1:]}) == {
        "prompt": [USER],
        "completion": [ASSISTANT],
    }
    row = {"text": "a"}
    assert maybe_convert_to_chatml(row) == row


def test_sharegpt_with_a_system_column_and_tools() -> None:
    call = {"name": "add", "arguments": {"a": 1}}
    row = {
        "system": "Be brief.",
        "conversations": [
            {"from": "human", "value": "1+1?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "2"},
        ],
        "tools": '[{"name": "add"}]',
    }
    kind, plain = normalise_row(row, WHERE)
    assert kind == "conversation"
    assert plain == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "2"},
        ],
        "tools": [{"name": "add"}],
    }


def test_nulls_that_arrow_fills_in_are_removed() -> None:
    calls = [{"function": {"name": "f", "arguments": {"a": 1, "b": None}}, "id": None}]
    messages = [
        {"role": "user", "content": "Hi", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    _, row = normalise_row({"messages": messages, "tools": None, "chat_template_kwargs": {"x": 1, "y": None}}, WHERE)
    assert row["messages"] == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    ]
    assert row["chat_template_kwargs"] == {"x": 1}
    assert "tools" not in row


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ({"text": None}, "text", "is null"),
        ({"text": 5}, "text", "is of type int, not text"),
        ({"prompt": "a", "id": 1}, "completion", "is missing"),
        ({"completion": "a"}, "prompt", "is missing"),
        ({"prompt": "a", "completion": None}, "completion", "is null"),
        ({"prompt": "a", "completion": 5}, "completion", "completion of type int"),
        ({"prompt": 5, "completion": "a"}, "prompt", "prompt is of type int"),
        ({"prompt": [USER], "completion": "a"}, "completion", "completion of type str"),
        ({"prompt": [USER], "completion": []}, "completion", "empty list"),
        ({"messages": []}, "messages", "empty list"),
        ({"messages": "Hi"}, "messages", "is of type str"),
        ({"messages": None}, "messages", "is null"),
        ({"messages": ["Hi"]}, "messages", "message 0 is of type str"),
        ({"messages": [USER, {"content": "a"}]}, "messages", "message 1 has no 'role'"),
        ({"messages": [{"role": 5, "content": "a"}]}, "messages", "'role' is 5"),
        ({"messages": [{"role": None, "content": "a"}]}, "messages", "'role' is None"),
        ({"messages": [{"role": "user"}]}, "messages", "message 0 (user): 'content' is missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages", "'content' is null"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "'content' is of type int"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages", "'content' is of type list"),
        ({"conversations": []}, "conversations", "empty list"),
        ({"conversations": [{"from": "human"}]}, "conversations", "'content' is null"),
        ({"conversations": "Hi"}, "conversations", "is of type str"),
        ({"messages": [USER], "tools": "{"}, "tools", "not JSON"),
        ({"messages": [USER], "tools": {"a": 1}}, "tools", "is of type dict, not list"),
        ({"messages": [USER], "chat_template_kwargs": [1]}, "chat_template_kwargs", "is of type list"),
        ({"input_ids": []}, "input_ids", "is empty"),
        ({"input_ids": ["a"]}, "input_ids", "whole numbers"),
        ({"input_ids": "ab"}, "input_ids", "whole numbers"),
        ({"input_ids": [1, 2], "labels": [1]}, "labels", "has 1 entries, input_ids has 2"),
        ({"input_ids": [1, 2], "completion_mask": [0.5, 1]}, "completion_mask", "whole numbers"),
        ({"input_ids": [1, 2], "assistant_masks": [1]}, "assistant_masks", "has 1 entries"),
    ],
)
def test_a_bad_row_names_source_row_and_column(row: dict[str, Any], column: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        normalise_row(row, WHERE)
    assert caught.value.what.startswith(f"train.jsonl, row 3 (counted from 0), column {column!r}: ")
    assert problem in caught.value.what


def test_an_unknown_row_says_what_was_found_and_what_is_expected() -> None:
    with pytest.raises(DataError) as caught:
        normalise_row({"story": "a", "id": 1}, WHERE)
    assert "'story', 'id'" in str(caught.value)
    assert "'messages' (a list of {role, content})" in str(caught.value)
    with pytest.raises(DataError, match="column 'tale': is missing"):
        normalise_row({"story": "a"}, WHERE, "tale")
