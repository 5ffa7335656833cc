"""The converter, on a tiny GGUF file made here."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.demo.convert import convert, rotary_halves
from examples.make_tiny import CHAT_TEMPLATE, make_model, make_tokenizer
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

TEXTS = ["What comes after 41?", "After 41 comes 42."]
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    name = name.removesuffix(".weight")
    if name.startswith("model.layers."):
        _, _, layer, module = name.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[module]}.weight"
    return f"{GGUF_NAMES[name]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order of a projection's rows in GGUF: first and second half of a head in turns."""
    size = len(weight) // heads
    order = [
        head * size + half * size // 2 + pair for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return weight[order]


def write_gguf(file: Path, model: LlamaForCausalLM, tokenizer, architecture: str = "llama") -> None:
    config = model.config
    writer = GGUFWriter(file, architecture)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in control else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.named_parameters():
        weight = tensor.detach().numpy()
        if (kind := name.split(".")[-2]) in heads:
            weight = interleaved(weight, heads[kind])
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def original():
    tokenizer = make_tokenizer(TEXTS)
    model = make_model(tokenizer)
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if "norm" in name:  # all ones at first, so that one could stand for another
            torch.nn.init.constant_(parameter, 1 + number / 100)
    return model, tokenizer


@pytest.fixture(scope="module")
def converted(original, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("convert")
    write_gguf(folder / "tiny.gguf", *original)
    convert(folder / "tiny.gguf", folder / "model")
    return folder / "model"


def test_weights_and_logits_are_those_of_the_original(original, converted):
    model, tokenizer = original
    loaded = AutoModelForCausalLM.from_pretrained(converted)
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_tokenizer_takes_any_text_and_keeps_digits_single(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    text = "After 41 comes 42.\n\tdéjà vu 日本"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    digits = [token for token in tokenizer.convert_ids_to_tokens(ids) if any(char.isdigit() for char in token)]
    assert digits == ["4", "1", "4", "2"]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_control_tokens_are_one_token_and_the_template_comes_through(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer("<|im_start|>").input_ids == [1]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_rotary_halves_undoes_the_order_of_gguf():
    weight = np.arange(2 * 6 * 3).reshape(12, 3)
    assert not np.array_equal(interleaved(weight, heads=2), weight)
    np.testing.assert_array_equal(rotary_halves(interleaved(weight, heads=2), heads=2), weight)


def test_another_architecture_is_refused_and_nothing_is_written(original, tmp_path):
    write_gguf(tmp_path / "other.gguf", *original, architecture="gemma")
    with pytest.raises(ValueError, match="only Llama"):
        convert(tmp_path / "other.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()
