"""Which tokens the assistant said: by hand, in every way of finding them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data import templates
from tests.fixtures.tiny import CHATML_WITH_MARKS, save_tiny, tiny_model, tiny_tokenizer
from trl.data.chat import (
    Chat,
    apply_chat_template,
    clone_chat_template,
    encode_chats,
    encode_chats_with_assistant_mask,
    get_training_chat_template,
    maybe_apply_chat_template,
)
from trl.data.formats import Where
from trl.errors import DataError

WHERE = Where("chats.jsonl", 2)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "5 😀"},
    {"role": "user", "content": "é?"},
    {"role": "assistant", "content": "yes"},
]


def _said(template: str, messages: list[dict[str, Any]], **fields: Any) -> tuple[list[str], str]:
    """The runs of masked tokens as text, and the whole text."""
    tok = tiny_tokenizer(chat_template=template)
    [(ids, mask, _)] = encode_chats_with_assistant_mask(tok, [Chat(messages, WHERE, **fields)])
    assert len(ids) == len(mask)
    runs: list[list[int]] = []
    for i, token in enumerate(ids):
        if mask[i]:
            if i == 0 or not mask[i - 1]:
                runs.append([])
            runs[-1].append(token)
    return [tok.decode(run) for run in runs], tok.decode(ids)


@pytest.mark.parametrize("template", [CHATML_WITH_MARKS, templates.CHATML_DEFAULT_SYSTEM], ids=["marks", "prefix"])
def test_the_assistants_words_and_the_end_of_its_turn(template: str) -> None:
    said, _ = _said(template, CHAT)
    assert said == ["5 😀<|im_end|>", "yes<|im_end|>"]


def test_marks_and_prefix_rendering_agree_token_by_token() -> None:
    no_marks = CHATML_WITH_MARKS.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    chats = [Chat(CHAT, WHERE), Chat(CHAT[1:3], WHERE), Chat(CHAT[:2], WHERE)]
    marked = encode_chats_with_assistant_mask(tiny_tokenizer(), chats)
    located = encode_chats_with_assistant_mask(tiny_tokenizer(chat_template=no_marks), chats)
    assert located == marked
    assert sum(located[2].mask) == 0


def test_a_template_with_a_default_system_turn() -> None:
    said, text = _said(templates.CHATML_DEFAULT_SYSTEM, CHAT[1:3])
    assert said == ["5 😀<|im_end|>"]
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n2+3?")


def test_a_template_without_control_tokens_keeps_the_line_end() -> None:
    said, _ = _said(templates.PLAIN_WORDS, CHAT)
    assert said == ["5 😀\n", "yes\n"]


def test_tool_calls_are_what_the_assistant_said() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    messages = [CHAT[1], {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "5"}]
    said, text = _said(templates.WITH_TOOLS, [*messages, CHAT[2]], tools=[{"name": "add"}])
    assert said[0].startswith('[{"type": "function"')
    assert said[0].endswith("}]<|im_end|>")
    assert said[1:] == ["5 😀<|im_end|>"]
    assert text.startswith('<|im_start|>system\nTools: [{"name": "add"}]<|im_end|>')


def test_the_whole_conversation_is_tokenised_the_same_with_and_without_mask() -> None:
    for template in (CHATML_WITH_MARKS, templates.CHATML_DEFAULT_SYSTEM):
        tok = tiny_tokenizer(chat_template=template)
        chats = [Chat(CHAT, WHERE), Chat(CHAT[1:3], WHERE)]
        assert encode_chats(tok, chats) == [said.ids for said in encode_chats_with_assistant_mask(tok, chats)]


def test_template_variables_reach_the_template() -> None:
    tok = tiny_tokenizer(chat_template="{{ mood }}:{% for m in messages %}{{ m['content'] }}{% endfor %}")
    [ids] = encode_chats(tok, [Chat(CHAT[1:2], WHERE, template_kwargs={"mood": "glad"})])
    assert tok.decode(ids) == "glad:2+3?"


def _refused(template: str, messages: list[dict[str, Any]]) -> DataError:
    with pytest.raises(DataError) as caught:
        _said(template, messages)
    return caught.value


def test_a_template_that_alters_earlier_turns_is_refused() -> None:
    thinking = {"role": "assistant", "content": "<think>hm</think>5"}
    assert _said(templates.STRIPS_THINKING, [CHAT[1], thinking])[0] == ["<think>hm</think>5<|im_end|>"]
    error = _refused(templates.STRIPS_THINKING, [CHAT[1], thinking, CHAT[3], CHAT[4]])
    assert error.what == (
        "chats.jsonl, row 2 (counted from 0): assistant_only_loss: what the assistant said in message 1 cannot be "
        "located exactly"
    )
    assert "renders differently when later turns follow" in error.why
    assert "'<think>hm</think>5" in error.why
    assert "generation" in error.fix


def test_a_generation_prompt_that_does_not_begin_the_turn_is_refused() -> None:
    template = templates.CHATML_DEFAULT_SYSTEM.replace("assistant\n' }}", "assistant\n<think>' }}")
    error = _refused(template, CHAT[1:3])
    assert "after the generation prompt" in error.why


def test_a_token_across_the_border_is_cut_there() -> None:
    # the blank at the end of "assistant: " would merge with "The"
    tok = tiny_tokenizer(texts=["assistant: The The The"] * 9, vocab_size=320)
    assert tok.tokenize(": The")[-1] == "ĠThe"
    tok.chat_template = templates.PLAIN_WORDS
    fine, odd = {"role": "assistant", "content": "5"}, {"role": "assistant", "content": "The"}
    whole = tok.apply_chat_template([CHAT[1], odd, CHAT[3], fine], tokenize=False)
    [said, other] = encode_chats_with_assistant_mask(
        tok, [Chat([CHAT[1], odd, CHAT[3], fine], WHERE), Chat([CHAT[1], fine], WHERE)]
    )
    assert said.merged
    assert tok.decode(said.ids) == whole
    header = tok("user: 2+3?\nassistant: ")["input_ids"]
    assert said.ids[: len(header)] == header, "the model is given what it is given when it is used"
    assert tok.decode([token for token, mine in zip(said.ids, said.mask) if mine]) == "The\n5\n"
    assert not other.merged


def test_pieces_that_give_another_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tok = tiny_tokenizer(texts=["assistant: The The The"] * 9, vocab_size=320, chat_template=templates.PLAIN_WORDS)
    decoded = iter("ab")
    monkeypatch.setattr(tok, "decode", lambda _: next(decoded))
    with pytest.raises(DataError, match="cannot be located exactly") as caught:
        encode_chats_with_assistant_mask(tok, [Chat([CHAT[1], {"role": "assistant", "content": "The"}], WHERE)])
    assert "the pieces give another text" in caught.value.why


def test_a_tokenizer_that_begins_every_text_with_a_blank() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = Tokenizer(models.BPE({letter: i for i, letter in enumerate("▁:userainthy")}, []))
    letters.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    letters.decoder = decoders.Metaspace()
    tok = PreTrainedTokenizerFast(tokenizer_object=letters)
    tok.chat_template = (
        "{% for m in messages %}{{ m.role + ':' + m.content + ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    [(ids, mask, _)] = encode_chats_with_assistant_mask(tok, [Chat(messages, WHERE)])
    assert "".join(tok.convert_ids_to_tokens(ids)) == "▁user:hi▁assistant:yes▁"
    assert tok.convert_ids_to_tokens([token for token, said in zip(ids, mask) if said]) == ["y", "e", "s", "▁"]


def test_a_generation_prompt_inside_the_turn_before_is_refused() -> None:
    two = [CHAT[1], CHAT[2], {"role": "assistant", "content": "six"}]
    template = (
        "{% if add_generation_prompt %}{{ messages[0]['content'] }}{% else %}"
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% endif %}"
    )
    assert "begins before the end of the turn before it" in _refused(template, two).why


def test_a_conversation_that_begins_with_the_assistant_is_refused() -> None:
    assert "begins with it" in _refused(templates.CHATML_DEFAULT_SYSTEM, CHAT[2:3]).why


@pytest.mark.parametrize("template", [templates.CHATML_DEFAULT_SYSTEM, CHATML_WITH_MARKS])
def test_a_failing_template_names_the_row(template: str) -> None:
    template = "{{ raise_exception('roles must alternate') }}" + template
    error = _refused(template, CHAT)
    assert error.what.startswith("chats.jsonl, row 2 (counted from 0): the chat template failed")
    assert "roles must alternate" in error.why


def test_no_template() -> None:
    with pytest.raises(DataError, match="no chat template"):
        encode_chats(tiny_tokenizer(chat_template=None), [Chat(CHAT, WHERE)])
    with pytest.raises(DataError, match="no chat template"):
        encode_chats_with_assistant_mask(tiny_tokenizer(chat_template=None), [Chat(CHAT, WHERE)])


# ------------------------------------------------------------------------------------------------- users' helpers


def test_apply_chat_template() -> None:
    tok = tiny_tokenizer()
    head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n"
    start, answer = "<|im_start|>assistant\n", "5 😀<|im_end|>\n"
    assert apply_chat_template({"messages": CHAT[:3]}, tok) == {"text": head + start + answer}
    assert apply_chat_template({"prompt": CHAT[:2]}, tok) == {"prompt": head + start}
    assert apply_chat_template({"prompt": CHAT[:2], "completion": CHAT[2:3], "label": True}, tok) == {
        "prompt": head + start,
        "completion": answer,
        "label": True,
    }
    assert apply_chat_template({"prompt": CHAT[:2], "chosen": CHAT[2:3], "rejected": CHAT[4:]}, tok) == {
        "prompt": head + start,
        "chosen": answer,
        "rejected": "yes<|im_end|>\n",
    }
    assert apply_chat_template({"chosen": CHAT[:3], "rejected": CHAT[:2]}, tok) == {
        "chosen": head + start + answer,
        "rejected": head,
    }
    begun = [*CHAT[:2], {"role": "assistant", "content": "It is"}]
    assert apply_chat_template({"prompt": begun}, tok) == {"prompt": head + start + "It is"}


def test_apply_chat_template_with_tools_and_variables() -> None:
    tok = tiny_tokenizer(
        chat_template="{{ mood }}{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    row = {"messages": CHAT[1:2], "tools": [{"name": "own"}], "chat_template_kwargs": {"mood": "own "}}
    assert apply_chat_template(row, tok, [{"name": "given"}], mood="given ") == {"text": 'own [{"name": "own"}]2+3?'}
    plain = {"messages": CHAT[1:2]}
    assert apply_chat_template(plain, tok, [{"name": "given"}], mood="given ") == {
        "text": 'given [{"name": "given"}]2+3?'
    }


def test_apply_chat_template_refuses_a_prompt_that_changes() -> None:
    tok = tiny_tokenizer(chat_template=templates.STRIPS_THINKING)
    prompt = [CHAT[1], {"role": "assistant", "content": "<think>hm</think>5"}]
    with pytest.raises(DataError, match="renders differently when the completion follows"):
        apply_chat_template({"prompt": prompt, "completion": CHAT[3:]}, tok)


def test_maybe_apply_chat_template() -> None:
    tok = tiny_tokenizer()
    assert maybe_apply_chat_template({"prompt": "Hi"}, tok) == {"prompt": "Hi"}
    assert maybe_apply_chat_template({"messages": CHAT[1:2]}, tok) == {"text": "<|im_start|>user\n2+3?<|im_end|>\n"}


def test_training_template_of_chatml_renders_the_same_and_marks_the_turns() -> None:
    tok = tiny_tokenizer(chat_template=templates.CHATML_DEFAULT_SYSTEM)
    marked = get_training_chat_template(tok)
    assert marked is not None
    for messages in (CHAT, CHAT[1:3], CHAT[1:2], CHAT[2:]):
        for more in ({}, {"add_generation_prompt": True}):
            expected = tok.apply_chat_template(messages, tokenize=False, **more)
            assert tok.apply_chat_template(messages, tokenize=False, chat_template=marked, **more) == expected
    assert _said(marked, CHAT)[0] == ["5 😀<|im_end|>", "yes<|im_end|>"]


@pytest.mark.parametrize(
    "write",
    [
        "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}",
        '{{- "<|im_start|>" + message["role"] + "\\n" + message["content"] | trim + "<|im_end|>" + "\\n" -}}',
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}\n",
    ],
)
def test_training_template_in_other_spellings(write: str) -> None:
    tok = tiny_tokenizer(chat_template="{% for message in messages %}\n" + write + "\n{% endfor %}")
    marked = get_training_chat_template(tok)
    assert marked is not None
    messages = [{"role": m["role"], "content": f" {m['content']} "} for m in CHAT]
    expected = tok.apply_chat_template(messages, tokenize=False)
    assert tok.apply_chat_template(messages, tokenize=False, chat_template=marked) == expected
    assert len(_said(marked, CHAT)[0]) == 2


def test_training_template_of_others() -> None:
    assert get_training_chat_template(tiny_tokenizer()) == CHATML_WITH_MARKS
    for template in (None, templates.PLAIN_WORDS, templates.WITH_TOOLS, templates.STRIPS_THINKING):
        assert get_training_chat_template(tiny_tokenizer(chat_template=template)) is None
    with_calls = templates.CHATML_DEFAULT_SYSTEM + "{% if messages[0].tool_calls %}calls{% endif %}"
    assert get_training_chat_template(tiny_tokenizer(chat_template=with_calls)) is None


def test_clone_chat_template(tmp_path: Any) -> None:
    source = tiny_tokenizer()
    source.add_tokens(["<|tool|>"], special_tokens=True)
    save_tiny(tmp_path, source, tiny_model(source))
    target = tiny_tokenizer(chat_template=None)
    target.eos_token = "<|endoftext|>"
    model = tiny_model(target, eos_token_id=0)
    before = model.get_input_embeddings().weight.detach().clone()

    model, target, added = clone_chat_template(model, target, str(tmp_path), resize_to_multiple_of=64)
    assert target.chat_template == CHATML_WITH_MARKS
    assert target.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2
    assert added == [384]
    weight = model.get_input_embeddings().weight
    assert weight.shape[0] == 448
    assert (weight[:384] == before).all()

    again = clone_chat_template(model, target, str(tmp_path))
    assert again[2] == []
    assert model.get_input_embeddings().weight.shape[0] == 448


def test_clone_from_a_tokenizer_without_template(tmp_path: Any) -> None:
    source = tiny_tokenizer(chat_template=None)
    source.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="has no chat template"):
        clone_chat_template(tiny_model(source), tiny_tokenizer(), str(tmp_path))
