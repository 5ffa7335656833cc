"""Rows with one answer -> token rows: `input_ids`, and `labels` that are IGNORE wherever nothing is to be learnt.

Labels are not shifted: labels[t] is input_ids[t] or IGNORE. A whole chunk of rows is tokenised in a few calls of the
tokenizer.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trl.data.chat import Chat, encode, encode_chats, encode_chats_with_assistant_mask, prompt_text
from trl.data.formats import Kind, Where, normalise_row
from trl.errors import ConfigError, DataError
from trl.layout.labels import IGNORE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class RowOptions:
    """How a row becomes tokens.

    Args:
        max_length: longer rows are truncated to this many tokens; None keeps them whole.
        truncation_mode: which end of a long row is kept.
        completion_only_loss: learn the completion only. None: wherever a row has a prompt and a completion.
        assistant_only_loss: learn only what the assistant said.
        dataset_text_field: the column that holds the text of text rows.
        chat_template_kwargs: variables for the chat template; those of a row win.
        formatting_func: turns a row into its text; the row's own shape does not matter then.
    """

    max_length: int | None = 1024
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    dataset_text_field: str = "text"
    chat_template_kwargs: Mapping[str, Any] | None = None
    formatting_func: Callable[[dict[str, Any]], str] | None = None

    def __post_init__(self) -> None:
        if self.truncation_mode not in ("keep_start", "keep_end"):
            raise ConfigError(
                f"truncation_mode {self.truncation_mode!r} is unknown", fix="use 'keep_start' or 'keep_end'"
            )
        if self.max_length is not None and self.max_length < 2:
            raise ConfigError(f"max_length={self.max_length} leaves no token to predict", fix="set it to 2 or more")


class Note(IntFlag):
    """What happened to a row on its way."""

    TRUNCATED = 1
    BORDER_MERGED = 2
    """Tokens merge across a border (prompt and completion, header and reply): tokenised apart and joined."""
    UNSUPERVISED = 4
    """No token is left to be learnt."""


class TokenRow(NamedTuple):
    """`input_ids` and `labels`, int32 [tokens], and what happened."""

    input_ids: np.ndarray
    labels: np.ndarray
    note: Note


class _Tokens(NamedTuple):
    """A row before truncation; `mask` is None where every token is learnt."""

    ids: Sequence[int]
    mask: Sequence[int] | np.ndarray | None = None
    note: Note = Note(0)
    labels: Sequence[int] | None = None


def tokenize_row(
    example: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, options: RowOptions, where: Where | None = None
) -> dict[str, list[int]]:
    """One row's `input_ids` and `labels` (not shifted).

    Raises:
        DataError: the row is malformed, or cannot be masked as asked.
    """
    row = tokenize_rows([example], [where or Where("example", 0)], tokenizer, options)[0]
    return {"input_ids": row.input_ids.tolist(), "labels": row.labels.tolist()}


def tokenize_rows(
    examples: Sequence[Mapping[str, Any]],
    places: Sequence[Where],
    tokenizer: PreTrainedTokenizerBase,
    options: RowOptions,
) -> list[TokenRow]:
    """Token rows of many rows, in their order."""
    normalised = [_normalise(row, where, options) for row, where in zip(examples, places)]
    tokens: dict[int, _Tokens] = {}
    for group in {_group(kind, row) for kind, row in normalised}:
        members = [i for i, (kind, row) in enumerate(normalised) if _group(kind, row) == group]
        tokenised = _TOKENISERS[group](
            [normalised[i][1] for i in members], [places[i] for i in members], tokenizer, options
        )
        tokens.update(zip(members, tokenised))
    return [_finish(tokens[i], options) for i in range(len(examples))]


def _normalise(row: Mapping[str, Any], where: Where, options: RowOptions) -> tuple[Kind, dict[str, Any]]:
    if options.formatting_func is None:
        return normalise_row(row, where, options.dataset_text_field)
    try:
        text = options.formatting_func(dict(row))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno} in {frame.name}"
        why = f"{type(error).__name__}: {error} at {place}"
        raise where.error("formatting_func failed on this row", why=why) from error
    if not isinstance(text, str):
        raise where.error(
            f"formatting_func returned {type(text).__name__}, not text",
            fix="return the row's text as one string; formatting_func is called with one row at a time",
        )
    return "text", {"text": text}


def _group(kind: Kind, row: Mapping[str, Any]) -> str:
    if kind == "prompt_completion":
        return "plain_pair" if isinstance(row["prompt"], str) else "chat_pair"
    return kind


# ---------------------------------------------------------------------------------------------------------- plain


class _Specials(NamedTuple):
    """What belongs around plain text: the tokens a tokenizer puts in front (BOS), and the end of sequence."""

    prefix: list[int]
    eos: int | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> _Specials:
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a")["input_ids"]
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        return cls(full[:start], tokenizer.eos_token_id)

    def begin(self, ids: list[int]) -> list[int]:
        """With the prefix, unless the text brings its own."""
        return ids if ids[: len(self.prefix)] == self.prefix else [*self.prefix, *ids]

    def end(self, ids: list[int]) -> list[int]:
        return ids if self.eos is None or ids[-1:] == [self.eos] else [*ids, self.eos]


Rows = Sequence[dict[str, Any]]
Places = Sequence[Where]


def _text_rows(rows: Rows, places: Places, tokenizer: PreTrainedTokenizerBase, options: RowOptions) -> list[_Tokens]:
    _require_no_masks(options, places[0], "is plain text")
    specials = _Specials.of(tokenizer)
    return [_Tokens(specials.end(specials.begin(ids))) for ids in encode(tokenizer, [row["text"] for row in rows])]


def _plain_pairs(rows: Rows, places: Places, tokenizer: PreTrainedTokenizerBase, options: RowOptions) -> list[_Tokens]:
    if options.assistant_only_loss:
        raise _assistant_needs_messages(places[0], "is a prompt and a completion in plain text")
    specials = _Specials.of(tokenizer)
    pairs = _join_pairs(
        tokenizer, [row["prompt"] for row in rows], [row["prompt"] + row["completion"] for row in rows]
    )
    result = []
    for prompt, completion, note in pairs:
        prompt = specials.begin(prompt)
        ids = specials.end([*prompt, *completion])
        result.append(_Tokens(ids, _completion_mask(len(prompt), len(ids), options), note))
    return result


def _join_pairs(
    tokenizer: PreTrainedTokenizerBase, prompts: list[str], wholes: list[str]
) -> list[tuple[list[int], list[int], Note]]:
    """Tokens of the prompts and of what follows them, with the prompt's tokens as they are without it.

    That is what the model is given when it is used. Where the whole text tokenises differently, what follows the
    prompt is tokenised apart.
    """
    encoded = encode(tokenizer, [*prompts, *wholes])
    pairs = list(zip(encoded[: len(prompts)], encoded[len(prompts) :]))
    merged = [i for i, (prompt, whole) in enumerate(pairs) if whole[: len(prompt)] != prompt]
    apart = dict(zip(merged, encode(tokenizer, [wholes[i][len(prompts[i]) :] for i in merged])))
    return [
        (prompt, apart[i], Note.BORDER_MERGED) if i in apart else (prompt, whole[len(prompt) :], Note(0))
        for i, (prompt, whole) in enumerate(pairs)
    ]


def _completion_mask(prompt: int, total: int, options: RowOptions) -> np.ndarray | None:
    return None if options.completion_only_loss is False else np.arange(total) >= prompt


# ----------------------------------------------------------------------------------------------------------- chat


def _chat(row: dict[str, Any], where: Where, options: RowOptions) -> Chat:
    variables = {**(options.chat_template_kwargs or {}), **row.get("chat_template_kwargs", {})}
    if "messages" in row:
        return Chat(row["messages"], where, None, row.get("tools"), variables)
    return Chat([*row["prompt"], *row["completion"]], where, len(row["prompt"]), row.get("tools"), variables)


def _conversations(
    rows: Rows, places: Places, tokenizer: PreTrainedTokenizerBase, options: RowOptions
) -> list[_Tokens]:
    if options.completion_only_loss:
        raise _completion_needs_pair(places[0], "holds messages")
    chats = [_chat(row, where, options) for row, where in zip(rows, places)]
    if options.assistant_only_loss:
        return _said(tokenizer, chats)
    return [_Tokens(ids) for ids in encode_chats(tokenizer, chats)]


def _said(tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]) -> list[_Tokens]:
    rows = encode_chats_with_assistant_mask(tokenizer, chats)
    return [_Tokens(row.ids, row.mask, Note.BORDER_MERGED if row.merged else Note(0)) for row in rows]


def _chat_pairs(rows: Rows, places: Places, tokenizer: PreTrainedTokenizerBase, options: RowOptions) -> list[_Tokens]:
    chats = [_chat(row, where, options) for row, where in zip(rows, places)]
    if options.completion_only_loss is False:
        if options.assistant_only_loss:
            return _said(tokenizer, chats)
        return [_Tokens(ids) for ids in encode_chats(tokenizer, chats)]
    wholes = [chat.render(tokenizer) for chat in chats]
    prompts = [prompt_text(tokenizer, chat, whole) for chat, whole in zip(chats, wholes)]
    pairs = _join_pairs(tokenizer, prompts, wholes)
    if not options.assistant_only_loss:
        return [
            _Tokens([*prompt, *rest], _completion_mask(len(prompt), len(prompt) + len(rest), options), note)
            for prompt, rest, note in pairs
        ]
    result = []
    for where, (prompt, *_), row in zip(places, pairs, _said(tokenizer, chats)):
        if list(row.ids[: len(prompt)]) != prompt:
            raise where.error(
                "a token lies across the border of prompt and completion, so assistant_only_loss cannot be exact",
                column="completion",
                fix="set completion_only_loss=False or assistant_only_loss=False",
            )
        assert row.mask is not None
        mask = np.asarray(row.mask, dtype=bool) & (np.arange(len(row.ids)) >= len(prompt))
        result.append(_Tokens(row.ids, mask, row.note))
    return result


# --------------------------------------------------------------------------------------------------------- tokens


def _token_rows(rows: Rows, places: Places, tokenizer: PreTrainedTokenizerBase, options: RowOptions) -> list[_Tokens]:
    size = len(tokenizer)
    result = []
    for row, where in zip(rows, places):
        ids = np.asarray(row["input_ids"])
        outside = ids[(ids < 0) | (ids >= size)]
        if len(outside):
            raise where.error(f"holds {outside[0]}; the tokenizer has {size} tokens", column="input_ids")
        given = row.keys() & {"labels", "completion_mask", "assistant_masks"}
        if options.completion_only_loss and not given & {"labels", "completion_mask"}:
            raise _completion_needs_pair(where, "is already tokenised and has neither 'completion_mask' nor 'labels'")
        if options.assistant_only_loss and not given & {"labels", "assistant_masks"}:
            raise _assistant_needs_messages(
                where, "is already tokenised and has neither 'assistant_masks' nor 'labels'"
            )
        mask = np.ones(len(ids), dtype=bool)
        if "completion_mask" in row and options.completion_only_loss is not False:
            mask &= np.asarray(row["completion_mask"], dtype=bool)
        if "assistant_masks" in row:
            mask &= np.asarray(row["assistant_masks"], dtype=bool)
        result.append(_Tokens(row["input_ids"], mask, labels=row.get("labels")))
    return result


_TOKENISERS: dict[str, Callable[..., list[_Tokens]]] = {
    "text": _text_rows,
    "plain_pair": _plain_pairs,
    "chat_pair": _chat_pairs,
    "conversation": _conversations,
    "tokens": _token_rows,
}


def _require_no_masks(options: RowOptions, where: Where, state: str) -> None:
    if options.completion_only_loss:
        raise _completion_needs_pair(where, state)
    if options.assistant_only_loss:
        raise _assistant_needs_messages(where, state)


def _completion_needs_pair(where: Where, state: str) -> DataError:
    return where.error(
        f"{state}, but completion_only_loss=True needs a prompt and a completion",
        fix="leave completion_only_loss unset, or give 'prompt' and 'completion'",
    )


def _assistant_needs_messages(where: Where, state: str) -> DataError:
    return where.error(
        f"{state}, but assistant_only_loss=True needs messages",
        fix="set assistant_only_loss=False, or give 'messages'",
    )


def _finish(tokens: _Tokens, options: RowOptions) -> TokenRow:
    ids = np.asarray(tokens.ids, dtype=np.int32)
    labels = ids if tokens.labels is None else np.asarray(tokens.labels, dtype=np.int32)
    if tokens.mask is not None:
        labels = np.where(np.asarray(tokens.mask, dtype=bool), labels, np.int32(IGNORE))
    note = tokens.note
    limit = options.max_length
    if limit is not None and len(ids) > limit:
        kept = slice(0, limit) if options.truncation_mode == "keep_start" else slice(len(ids) - limit, None)
        ids, labels, note = ids[kept], labels[kept], note | Note.TRUNCATED
    # The first token of a document is never predicted, so it does not count.
    if not (labels[1:] != IGNORE).any():
        note |= Note.UNSUPERVISED
    return TokenRow(ids, labels, note)
