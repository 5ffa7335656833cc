"""Rows to labels, by hand: what is learnt is written in the tests as text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data import templates
from tests.fixtures.tiny import tiny_tokenizer
from trl.data.formats import Where
from trl.data.prompts import Note, RowOptions, tokenize_row, tokenize_rows
from trl.errors import ConfigError, DataError
from trl.layout.labels import IGNORE

TOK = tiny_tokenizer()
PREFIX_TOK = tiny_tokenizer(chat_template=templates.CHATML_DEFAULT_SYSTEM)
USER, ASSISTANT = {"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}
MORE = [{"role": "user", "content": "And 1+1?"}, {"role": "assistant", "content": "2"}]
END = "<|im_end|>"


def _bos_tokenizer() -> Any:
    from tokenizers.processors import TemplateProcessing

    tok = tiny_tokenizer()
    tok.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    return tok


def _row(example: dict[str, Any], tok: Any = TOK, **options: Any) -> tuple[str, str]:
    """The whole text and what of it is learnt; checks that labels are input ids or IGNORE."""
    row = tokenize_row(example, tok, RowOptions(**options))
    assert all(label in (token, IGNORE) for token, label in zip(row["input_ids"], row["labels"], strict=True))
    return tok.decode(row["input_ids"]), tok.decode([label for label in row["labels"] if label != IGNORE])


def test_text_is_learnt_whole_and_ends() -> None:
    assert _row({"text": "The answer is 42."}) == ("The answer is 42." + END,) * 2
    assert _row({"text": "The answer" + END}) == ("The answer" + END,) * 2
    assert _row({"story": "Yes."}, dataset_text_field="story") == ("Yes." + END,) * 2


def test_text_of_a_tokenizer_that_adds_a_beginning() -> None:
    tok = _bos_tokenizer()
    assert tok("Yes.")["input_ids"][0] == 1
    assert _row({"text": "Yes."}, tok)[0] == "<|im_start|>Yes." + END
    assert _row({"text": "<|im_start|>Yes."}, tok)[0] == "<|im_start|>Yes." + END
    whole, learnt = _row({"prompt": "2+3=", "completion": "5"}, tok)
    assert (whole, learnt) == ("<|im_start|>2+3=5" + END, "5" + END)
    assert _row({"messages": [USER]}, tok)[0] == "<|im_start|>user\n2+3?<|im_end|>\n"


def test_no_end_where_the_tokenizer_has_none() -> None:
    tok = tiny_tokenizer()
    tok.eos_token = None
    assert _row({"text": "Yes."}, tok)[0] == "Yes."


def test_prompt_and_completion() -> None:
    pair = {"prompt": "2+3=", "completion": "5"}
    assert _row(pair) == ("2+3=5" + END, "5" + END)
    assert _row(pair, completion_only_loss=True) == ("2+3=5" + END, "5" + END)
    assert _row(pair, completion_only_loss=False) == ("2+3=5" + END, "2+3=5" + END)


def test_prompt_and_completion_whose_tokens_merge_are_tokenised_apart() -> None:
    pair = {"prompt": "What ", "completion": "is the sum"}
    assert TOK.tokenize("What is the sum") == ["What", "Ġis", "Ġthe", "Ġsum"]
    [row] = tokenize_rows([pair], [Where("x", 0)], TOK, RowOptions())
    assert row.note == Note.BORDER_MERGED
    prompt = TOK("What ")["input_ids"]
    assert row.input_ids[: len(prompt)].tolist() == prompt
    assert row.labels.tolist() == [IGNORE] * len(prompt) + TOK("is the sum")["input_ids"] + [2]
    [plain] = tokenize_rows([{"prompt": "What", "completion": " is"}], [Where("x", 0)], TOK, RowOptions())
    assert plain.note == Note(0)


def test_messages() -> None:
    whole = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n"
    assert _row({"messages": [USER, ASSISTANT]}) == (whole, whole)
    assert _row({"messages": [USER, ASSISTANT]}, assistant_only_loss=True) == (whole, "5" + END)
    sharegpt = {"conversations": [{"from": "human", "value": "2+3?"}, {"from": "gpt", "value": "5"}]}
    assert _row(sharegpt, assistant_only_loss=True) == (whole, "5" + END)


def test_messages_with_a_template_without_marks() -> None:
    row = {"messages": [USER, ASSISTANT, *MORE]}
    assert _row(row, PREFIX_TOK, assistant_only_loss=True)[1] == f"5{END}2{END}"


@pytest.mark.parametrize("tok", [TOK, PREFIX_TOK], ids=["marks", "prefix"])
def test_conversational_prompt_and_completion(tok: Any) -> None:
    pair = {"prompt": [USER, ASSISTANT, MORE[0]], "completion": [MORE[1]]}
    whole = tok.apply_chat_template([USER, ASSISTANT, *MORE], tokenize=False)
    assert _row(pair, tok) == (whole, f"2{END}\n")
    assert _row(pair, tok, completion_only_loss=False) == (whole, whole)
    assert _row(pair, tok, assistant_only_loss=True) == (whole, f"2{END}")
    assert _row(pair, tok, assistant_only_loss=True, completion_only_loss=False) == (whole, f"5{END}2{END}")


def test_a_completion_of_several_turns() -> None:
    pair = {"prompt": [USER], "completion": [ASSISTANT, *MORE]}
    assert _row(pair, assistant_only_loss=True)[1] == f"5{END}2{END}"
    assert _row(pair)[1].startswith(f"5{END}\n<|im_start|>user\nAnd")


def test_template_variables_of_options_and_row() -> None:
    tok = tiny_tokenizer(chat_template="{{ mood }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    row = {"messages": [USER]}
    assert _row(row, tok, chat_template_kwargs={"mood": "glad "})[0] == "glad 2+3?"
    own = row | {"chat_template_kwargs": {"mood": "sad "}}
    assert _row(own, tok, chat_template_kwargs={"mood": "glad "})[0] == "sad 2+3?"


def test_tools_reach_the_template() -> None:
    tok = tiny_tokenizer(chat_template=templates.WITH_TOOLS)
    assert '[{"name": "add"}]' in _row({"messages": [USER], "tools": [{"name": "add"}]}, tok)[0]


def test_token_rows() -> None:
    ids = TOK("2+3=5")["input_ids"]
    assert tokenize_row({"input_ids": ids}, TOK, RowOptions()) == {"input_ids": ids, "labels": ids}
    row = {"input_ids": [5, 6, 7, 8]}
    cases: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = [
        ({"labels": [-100, 6, -100, 8]}, {}, [-100, 6, -100, 8]),
        ({"completion_mask": [0, 0, 1, 1]}, {}, [-100, -100, 7, 8]),
        ({"completion_mask": [0, 0, 1, 1]}, {"completion_only_loss": False}, [5, 6, 7, 8]),
        ({"assistant_masks": [0, 1, 1, 0]}, {}, [-100, 6, 7, -100]),
        ({"completion_mask": [0, 0, 1, 1], "assistant_masks": [0, 1, 1, 0]}, {}, [-100, -100, 7, -100]),
        ({"labels": [5, 6, 7, -100], "completion_mask": [0, 0, 1, 1]}, {}, [-100, -100, 7, -100]),
        ({"labels": [5, 6, 7, -100]}, {"assistant_only_loss": True}, [5, 6, 7, -100]),
    ]
    for more, options, labels in cases:
        assert tokenize_row(row | more, TOK, RowOptions(**options))["labels"] == labels


def test_formatting_func() -> None:
    row = {"a": 2, "b": 3, "messages": "not looked at"}
    assert _row(row, formatting_func=lambda r: f"{r['a']}+{r['b']}")[0] == "2+3" + END


def test_truncation() -> None:
    row = {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}

    def cut(**options: Any) -> tuple[list[int], list[int], Note]:
        [result] = tokenize_rows([row], [Where("x", 0)], TOK, RowOptions(**options))
        return result.input_ids.tolist(), result.labels.tolist(), result.note

    assert cut(max_length=3) == ([5, 6, 7], [-100, -100, 7], Note.TRUNCATED)
    assert cut(max_length=3, truncation_mode="keep_end") == ([6, 7, 8], [-100, 7, 8], Note.TRUNCATED)
    assert cut(max_length=2) == ([5, 6], [-100, -100], Note.TRUNCATED | Note.UNSUPERVISED)
    assert cut(max_length=4) == cut(max_length=None) == ([5, 6, 7, 8], [-100, -100, 7, 8], Note(0))


def test_a_first_token_alone_is_nothing_to_learn() -> None:
    [row] = tokenize_rows([{"input_ids": [5, 6], "labels": [5, -100]}], [Where("x", 0)], TOK, RowOptions())
    assert row.note == Note.UNSUPERVISED


def test_rows_of_several_kinds_keep_their_order() -> None:
    rows = [
        {"text": "Yes.", "messages": None},
        {"text": None, "messages": [USER]},
        {"text": "No.", "messages": None},
        {"prompt": "a", "completion": "b"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"input_ids": [5, 6]},
    ]
    together = tokenize_rows(rows, [Where("x", i) for i in range(len(rows))], TOK, RowOptions())
    for row, result in zip(rows, together):
        assert tokenize_row(row, TOK, RowOptions())["input_ids"] == result.input_ids.tolist()


@pytest.mark.parametrize(
    ("row", "options", "problem"),
    [
        ({"text": "a"}, {"completion_only_loss": True}, "completion_only_loss=True needs a prompt"),
        ({"messages": [USER]}, {"completion_only_loss": True}, "completion_only_loss=True needs a prompt"),
        ({"input_ids": [5]}, {"completion_only_loss": True}, "neither 'completion_mask' nor 'labels'"),
        ({"text": "a"}, {"assistant_only_loss": True}, "assistant_only_loss=True needs messages"),
        ({"prompt": "a", "completion": "b"}, {"assistant_only_loss": True}, "assistant_only_loss=True needs messages"),
        ({"input_ids": [5]}, {"assistant_only_loss": True}, "neither 'assistant_masks' nor 'labels'"),
        ({"input_ids": [5, 384]}, {}, "holds 384; the tokenizer has 384 tokens"),
        ({"input_ids": [-1]}, {}, "holds -1"),
        ({"a": 1}, {"formatting_func": lambda r: r["b"]}, "formatting_func failed"),
        ({"a": 1}, {"formatting_func": lambda r: ["a"]}, "formatting_func returned list"),
    ],
)
def test_what_cannot_be_done_names_the_row(row: dict[str, Any], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        tokenize_row(row, TOK, RowOptions(**options), Where("a.jsonl", 7))
    assert caught.value.what.startswith("a.jsonl, row 7 (counted from 0)")
    assert problem in caught.value.what


def test_a_reply_that_merges_with_its_header_is_marked() -> None:
    tok = tiny_tokenizer(texts=["assistant: The The The"] * 9, vocab_size=320, chat_template=templates.PLAIN_WORDS)
    reply = {"role": "assistant", "content": "The"}
    for row in ({"messages": [USER, reply]}, {"prompt": [USER], "completion": [reply]}):
        [result] = tokenize_rows([row], [Where("x", 0)], tok, RowOptions(assistant_only_loss=True))
        assert result.note == Note.BORDER_MERGED
        assert tok.decode([label for label in result.labels if label != IGNORE]) == "The\n"


def test_a_chat_completion_across_a_token_is_refused_with_assistant_only_loss() -> None:
    tok = tiny_tokenizer(texts=["assistant: The The The"] * 9, vocab_size=320)
    marked = templates.PLAIN_WORDS.replace(
        "{{ m['role'] + ': ' + m['content'] + '\n' }}",
        "{{ m['role'] + ': ' }}{% generation %}{{ m['content'] }}{% endgeneration %}{{ '\n' }}",
    )
    tok.chat_template = marked
    pair = {"prompt": [USER], "completion": [{"role": "assistant", "content": "The"}]}
    with pytest.raises(DataError, match="across the border of prompt and completion"):
        tokenize_row(pair, tok, RowOptions(assistant_only_loss=True))


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="'keep_middle'"):
        RowOptions(truncation_mode="keep_middle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_length=1"):
        RowOptions(max_length=1)
