"""A quantised GGUF file of a Llama model -> the folder that transformers loads: config, weights in fp32, tokenizer."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # GGUF's token type of <|im_start|> and the like


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` to `folder`, which appears only when it is complete.

    Raises:
        ValueError: the file holds another architecture or a tensor that is not known here.
    """
    reader = GGUFReader(gguf)
    config = model_config(reader)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        save_file(weights(reader, config), made / "model.safetensors", metadata={"format": "pt"})
        tokenizer(reader).save(str(made / "tokenizer.json"))
        ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        for name, content in (
            ("config", config),
            ("generation_config", ends),
            ("tokenizer_config", tokenizer_config(reader, config)),
        ):
            (made / f"{name}.json").write_text(json.dumps(content, indent=1))
        os.replace(made, folder)


def field(reader: GGUFReader, key: str) -> Any:
    """A value of the file's header."""
    if key not in reader.fields:
        raise ValueError(f"the GGUF file has no field {key}")
    return reader.fields[key].contents()


def model_config(reader: GGUFReader) -> dict[str, Any]:
    """The content of config.json."""
    if field(reader, "general.architecture") != "llama":
        raise ValueError(f"only Llama models are converted, not {field(reader, 'general.architecture')!r}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": field(reader, "llama.embedding_length"),
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_attention_heads": field(reader, "llama.attention.head_count"),
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": field(reader, "llama.context_length"),
        "rms_norm_eps": field(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": field(reader, "llama.rope.freq_base"),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
    }


def weights(reader: GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """{name in transformers: dequantised tensor}."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name)
        if match is None or match[2] not in _MODULES:
            raise ValueError(f"tensor {tensor.name} is not part of a Llama model")
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if match[2] in heads:
            weight = rotary_halves(weight, heads[match[2]])
        layer = f"model.layers.{match[1]}." if match[1] else ""
        found[f"{layer}{_MODULES[match[2]]}.weight"] = np.ascontiguousarray(weight)
    return found


def rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of the rows of a query or key projection, shape (rows, columns).

    Rotary embeddings turn pairs of rows of a head. GGUF stores the two of a pair side by side
    (0, h/2, 1, h/2 + 1, ...), transformers all first ones before all second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def tokenizer(reader: GGUFReader) -> Tokenizer:
    """The byte-level BPE tokenizer in the file's header; digits stay single."""
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    kinds = field(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds) if kind == _CONTROL]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return made


def tokenizer_config(reader: GGUFReader, config: dict[str, Any]) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    tokens = field(reader, "tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": field(reader, "tokenizer.chat_template"),
    }
