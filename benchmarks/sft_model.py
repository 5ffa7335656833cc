"""A model folder with random weights: `python sft_model.py FOLDER LAYERS HIDDEN VOCABULARY`. Started by `sft.py`."""

from __future__ import annotations

import sys

import torch
from cases import TINY, Shape, conversations
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, START, END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def chat_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level, for conversations."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    texts = (turn["content"] for row in conversations(20) for turn in row["messages"])
    bpe.train_from_iterator(texts, trainer=trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=PAD, eos_token=END)
    made.chat_template = TEMPLATE
    return made


def number_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A word for each id: the rows come tokenised, but the sizes of tokenizer and model should agree."""
    words = [*SPECIALS, *(f"t{i}" for i in range(len(SPECIALS), vocabulary))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=PAD))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=PAD, eos_token=END)


def main(folder: str, shape: Shape) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape.config)).save_pretrained(folder)
    make = chat_tokenizer if shape == TINY else number_tokenizer
    make(shape.vocabulary).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], Shape(*map(int, sys.argv[2:])))
