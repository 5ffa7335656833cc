"""Messages -> token ids, and which of them the assistant said.

The mask of an assistant's tokens is found in one of two ways, never guessed:

1. The template marks them with `{% generation %}`: transformers returns the mask.
2. Otherwise each assistant turn i is located by rendering: `before` is the conversation up to turn i with the
   generation prompt, which is what the model sees when it has to speak; `after` is the conversation up to and
   including turn i. Then `before` must begin `after`, and `after` must begin the whole conversation. What lies between
   is what the assistant said, with the token that ends its turn, which the model must learn. A template that renders
   a turn differently once later turns follow fails the check, and is refused. Both borders must lie between tokens
   of the whole conversation; where a reply begins with white space that merges with the header, the conversation is
   tokenised piece by piece, which is how it comes about when the model speaks, and the row is marked as `merged`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from trl.data.formats import Message, Where, is_conversational
from trl.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GENERATION_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

ADVICE = (
    "use a chat template that marks the assistant's words with {% generation %} ... {% endgeneration %} "
    "(chat_template_path), or set assistant_only_loss=False"
)


@dataclass(frozen=True)
class Chat:
    """A conversation to be rendered.

    Args:
        messages: the whole conversation.
        where: its place in the data, for error messages.
        prompt: how many of the messages are the prompt, where the row has a prompt and a completion.
        tools: JSON schemas of the tools, or None.
        template_kwargs: further variables of the template.
    """

    messages: list[Message]
    where: Where
    prompt: int | None = None
    tools: list[Any] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def render(self, tokenizer: PreTrainedTokenizerBase, count: int | None = None, **how: Any) -> str:
        """The text of the first `count` messages. `how`: add_generation_prompt or continue_final_message."""
        try:
            text = tokenizer.apply_chat_template(
                self.messages[:count], tools=self.tools, tokenize=False, **how, **self.template_kwargs
            )
        except Exception as error:  # templates raise whatever they like
            raise self.template_error(tokenizer, error) from None
        return cast(str, text)

    def template_error(self, tokenizer: PreTrainedTokenizerBase, error: Exception) -> DataError:
        if not tokenizer.chat_template:
            return self.where.error(
                "holds messages, but the tokenizer has no chat template",
                fix="set chat_template_path to a template file or to a model that has one",
            )
        return self.where.error(
            "the chat template failed on this conversation", why=f"{type(error).__name__}: {error}"
        )


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, without the tokens that a tokenizer adds of its own accord."""
    if not texts:
        return []
    encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
    return encoded["input_ids"]


def has_generation_marks(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether every chat template of the tokenizer marks the assistant's words."""
    template = tokenizer.chat_template
    templates = list(template.values()) if isinstance(template, dict) else [template or ""]
    return all(GENERATION_MARK.search(text) for text in templates)


def encode_chats(tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]) -> list[list[int]]:
    """Token ids of the whole conversations."""
    return encode(tokenizer, [chat.render(tokenizer) for chat in chats])


class Said(NamedTuple):
    """Token ids of a conversation; `mask` is 1 for each token that the assistant said, else 0."""

    ids: list[int]
    mask: list[int]
    merged: bool = False
    """The whole text has a token that lies across a border of a turn, so it was tokenised piece by piece."""


def encode_chats_with_assistant_mask(tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]) -> list[Said]:
    """Token ids of the whole conversations, and what of them the assistant said.

    Raises:
        DataError: the template has no marks and a turn cannot be located exactly.
    """
    if has_generation_marks(tokenizer):
        return [_marked(tokenizer, chat) for chat in chats]
    whole = [chat.render(tokenizer) for chat in chats]
    turns = [_assistant_turns(tokenizer, chat, text) for chat, text in zip(chats, whole)]
    cuts = [[cut for turn in row for cut in (turn.start, turn.end)] for row in turns]
    special = special_ids(tokenizer)
    result = []
    for chat, row, cut in zip(chats, turns, _cut_by_tokens(tokenizer, whole, cuts)):
        if cut is None:
            raise _refusal(chat, row[0].index, "a token lies across its border, and the pieces give another text")
        mask = [0] * len(cut.ids)
        for start, end in zip(cut.at[::2], cut.at[1::2]):
            end = _without_trailing_space(tokenizer, cut.ids, start, end, special)
            mask[start:end] = [1] * (end - start)
        result.append(Said(cut.ids, mask, cut.merged))
    return result


class _Cut(NamedTuple):
    """Tokens of a text, and how many lie before each cut."""

    ids: list[int]
    at: list[int]
    merged: bool = False


def _cut_by_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], cuts: list[list[int]]
) -> Iterator[_Cut | None]:
    """Tokenise each text so that every cut (in characters, ascending) lies between two tokens; None: impossible.

    If the tokens of the pieces between the cuts, one after another, are those of the whole text, there is nothing to
    do. Where that fails, be it that a tokenizer begins every text with a blank of its own, each cut is tried alone:
    the tokens of the text before it must begin those of the whole. Where that fails too, the pieces are taken as they
    are, if together they still are the text.
    """
    encoded = encode(tokenizer, texts)
    pieces = iter(encode(tokenizer, [text[a:b] for text, at in zip(texts, cuts) for a, b in pairwise([0, *at])]))
    for text, ids, at in zip(texts, encoded, cuts):
        mine = [next(pieces) for _ in at]
        joined = [*chain.from_iterable(mine)]
        if joined == ids[: len(joined)]:
            yield _Cut(ids, [*accumulate(map(len, mine))])
            continue
        before = encode(tokenizer, [text[:cut] for cut in at])
        if all(start == ids[: len(start)] for start in before):
            yield _Cut(ids, [*map(len, before)])
            continue
        joined += encode(tokenizer, [text[at[-1] :]])[0]
        same = tokenizer.decode(joined) == tokenizer.decode(ids)
        yield _Cut(joined, [*accumulate(map(len, mine))], merged=True) if same else None


def _marked(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Said:
    try:
        encoded: Any = tokenizer.apply_chat_template(
            chat.messages,
            tools=chat.tools,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},
            **chat.template_kwargs,
        )
    except Exception as error:
        raise chat.template_error(tokenizer, error) from None
    return Said(encoded["input_ids"], encoded["assistant_masks"])


@dataclass(frozen=True)
class _Turn:
    """What the assistant said in message `index`: the characters from `start` to `end` of the whole text."""

    index: int
    start: int
    end: int


def _assistant_turns(tokenizer: PreTrainedTokenizerBase, chat: Chat, whole: str) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        if index == 0:
            raise _refusal(chat, index, "the conversation begins with it: there is nothing to render before it")
        last = index == len(chat.messages) - 1
        before = chat.render(tokenizer, index, add_generation_prompt=True)  # what the model has in front of it
        after = whole if last else chat.render(tokenizer, index + 1)
        if not after.startswith(before):
            raise _refusal(chat, index, f"after the generation prompt {_difference(before, after)}")
        if not whole.startswith(after):
            raise _refusal(chat, index, f"it renders differently when later turns follow: {_difference(after, whole)}")
        if turns and len(before) < turns[-1].end:
            raise _refusal(chat, index, "its generation prompt begins before the end of the turn before it")
        turns.append(_Turn(index, len(before), len(after)))
    return turns


def _without_trailing_space(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], start: int, end: int, special: frozenset[int]
) -> int:
    """Leave out white space after the token that ends the turn: the model has stopped by then."""
    stop = next((i for i in reversed(range(start, end)) if ids[i] in special), None)
    if stop is None or str(tokenizer.decode(ids[stop + 1 : end])).strip():
        return end
    return stop + 1


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of the control tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def _refusal(chat: Chat, index: int, why: str) -> DataError:
    return chat.where.error(
        f"assistant_only_loss: what the assistant said in message {index} cannot be located exactly",
        why=why,
        fix=ADVICE,
    )


def _difference(prefix: str, text: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(prefix, text)) if a != b), min(len(prefix), len(text)))
    return f"at character {at} {prefix[at : at + 30]!r} became {text[at : at + 30]!r}"


def prompt_text(tokenizer: PreTrainedTokenizerBase, chat: Chat, whole: str) -> str:
    """The text of the prompt of a prompt and completion; checked to begin the whole text.

    Raises:
        DataError: the template renders the prompt differently when the completion follows.
    """
    answers = chat.prompt is not None and chat.messages[chat.prompt]["role"] == "assistant"
    text = chat.render(tokenizer, chat.prompt, add_generation_prompt=answers)
    if not whole.startswith(text):
        raise chat.where.error(
            "the prompt renders differently when the completion follows, so the completion cannot be told apart",
            column="prompt",
            why=_difference(text, whole),
            fix="use a chat template that leaves earlier turns as they are, or set completion_only_loss=False",
        )
    return text


# ------------------------------------------------------------------------------------------ for users' own scripts


def apply_chat_template(
    example: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    tools: list[dict[str, Any] | Callable[..., Any]] | None = None,
    **template_kwargs: Any,
) -> dict[str, Any]:
    """Render a conversational row to text.

    Args:
        example: a row with `messages`, with `prompt` and any of `completion`, `chosen`, `rejected`, or with `chosen`
            and `rejected` alone. `tools` and `chat_template_kwargs` of the row are used where given.
        tokenizer: its chat template renders.
        tools: JSON schemas or functions, for rows without tools of their own.
        template_kwargs: further variables of the template; those of the row win.

    Returns:
        `text` for `messages`; else the same columns as text, where prompt + answer is the rendering of both together.
        Other columns (`label`, ...) are kept.

    Raises:
        DataError: the template renders the prompt differently when an answer follows, or fails.
    """
    where = Where("apply_chat_template", 0)
    tools = example.get("tools") or tools
    variables = {**template_kwargs, **(example.get("chat_template_kwargs") or {})}
    used = ("messages", "prompt", "completion", "chosen", "rejected", "tools", "chat_template_kwargs")
    rendered = {key: value for key, value in example.items() if key not in used}

    def chat(messages: list[Message], prompt: int | None = None) -> Chat:
        return Chat(messages, where, prompt, tools, variables)

    if "messages" in example:
        return rendered | {"text": chat(example["messages"]).render(tokenizer)}
    prompt = example.get("prompt") or []
    answers = [name for name in ("completion", "chosen", "rejected") if name in example]
    if prompt and not answers:
        goes_on = prompt[-1]["role"] == "assistant"  # a prompt that already begins the answer
        how = {"continue_final_message": True} if goes_on else {"add_generation_prompt": True}
        rendered["prompt"] = chat(prompt).render(tokenizer, **how)
    for name in answers:
        answer = chat([*prompt, *example[name]], len(prompt))
        whole = answer.render(tokenizer)
        before = prompt_text(tokenizer, answer, whole) if prompt else ""
        rendered[name] = whole[len(before) :]
        if prompt:
            rendered["prompt"] = before
    return rendered


def maybe_apply_chat_template(
    example: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    tools: list[dict[str, Any] | Callable[..., Any]] | None = None,
    **template_kwargs: Any,
) -> dict[str, Any]:
    """`apply_chat_template` for a conversational row; any other row as it is."""
    if not is_conversational(example):
        return dict(example)
    return apply_chat_template(example, tokenizer, tools, **template_kwargs)


def clone_chat_template(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_tokenizer_path: str,
    resize_to_multiple_of: int | None = 64,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[int]]:
    """Give a model the chat template of another, with the control tokens that it needs.

    `source_tokenizer_path` may also be a Jinja file: then the template alone is taken over.

    The template, the end-of-sequence token and the added tokens that are missing are taken over; the embedding grows
    if it has too few rows (to a multiple of `resize_to_multiple_of`; None: exactly). `model` and `tokenizer` are
    changed in place.

    Returns:
        The model, the tokenizer and the ids of the tokens that were added.
    """
    from transformers import AutoTokenizer

    file = Path(source_tokenizer_path).expanduser()
    if file.is_file():
        tokenizer.chat_template = file.read_text(encoding="utf-8")
        return model, tokenizer, []
    if not file.exists() and file.suffix in (".jinja", ".jinja2", ".j2"):
        raise DataError(f"there is no chat template {source_tokenizer_path}", fix="check the spelling and the folder")
    source = AutoTokenizer.from_pretrained(source_tokenizer_path)
    if not source.chat_template:
        raise DataError(f"the tokenizer of {source_tokenizer_path!r} has no chat template")
    known = tokenizer.get_vocab()
    missing = [token for _, token in sorted(source.added_tokens_decoder.items()) if token.content not in known]
    tokenizer.add_tokens(missing)
    tokenizer.chat_template = source.chat_template
    tokenizer.eos_token = source.eos_token
    model.config.eos_token_id = tokenizer.eos_token_id
    if model.generation_config is not None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    if len(tokenizer) > cast(Any, model.get_input_embeddings()).weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=resize_to_multiple_of)
    return model, tokenizer, [tokenizer.get_vocab()[token.content] for token in missing]


# The expression with which ChatML templates write a message, in the spellings that are in use (the line break may be
# an escape or itself):
#   {{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
_CHATML_MESSAGE = re.compile(
    r"""(?P<open>\{\{[-+]?)\s*(?P<q>['"])<\|im_start\|>(?P=q)\s*\+\s*
        (?P<m>\w+)(?P<role>\[['"]role['"]\]|\.role)\s*\+\s*(?P=q)(?:\\n|\n)(?P=q)\s*\+\s*
        (?P=m)(?P<content>(?:\[['"]content['"]\]|\.content)(?:\s*\|\s*trim)?)\s*\+\s*
        (?P=q)<\|im_end\|>(?:(?P=q)\s*\+\s*(?P=q))?(?P<newline>\\n|\n)?(?P=q)\s*(?P<close>[-+]?\}\})""",
    re.VERBOSE,
)


def get_training_chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The tokenizer's chat template with the assistant's words marked by `{% generation %}`; renders the same text.

    Returns:
        The template itself if it has marks; the marked one for ChatML templates, whose expression for a message is
        split in three (header, marked words and end of turn, line break); None where we do not know how.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str):
        return None
    if GENERATION_MARK.search(template):
        return template
    # Templates with tool calls write an assistant's turn in other places as well, which would stay unmarked.
    if "tool_calls" in template or len(_CHATML_MESSAGE.findall(template)) != 1:
        return None
    return _CHATML_MESSAGE.sub(_mark_chatml_message, template)


def _mark_chatml_message(match: re.Match[str]) -> str:
    name, role, content, newline = match["m"], match["role"], match["content"], "\\n" if match["newline"] else ""
    words = f"{{{{ {name}{content} + '<|im_end|>' }}}}"
    return (
        f"{match['open']} '<|im_start|>' + {name}{role} + '\\n' }}}}"
        f"{{% if {name}{role} == 'assistant' %}}{{% generation %}}{words}{{% endgeneration %}}"
        f"{{% else %}}{words}{{% endif %}}"
        # an expression comes last, as before: Jinja drops a line break after a block, but not after an expression
        f"{{{{ '{newline}' {match['close']}"
    )
