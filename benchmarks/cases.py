"""What `sft.py` compares: models, rows and settings. Standard library only; both environments read this file."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

FIRST_PLAIN_ID = 10  # below are the special tokens


@dataclass(frozen=True)
class Shape:
    """A Llama with random weights (speed does not depend on them), tied embeddings and heads of 64 channels."""

    layers: int
    hidden: int
    vocabulary: int

    @property
    def config(self) -> dict[str, Any]:
        """Arguments of `LlamaConfig`. A third of the heads, or half of them, have keys and values of their own."""
        heads = self.hidden // 64
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 8 // 3,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 3 if heads % 3 == 0 else max(1, heads // 2),
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }


WIDE = Shape(12, 576, 49_152)  # 12 of the 30 layers of a 135M chat model
SMALL = Shape(6, 256, 49_152)  # the shape of the published 31M models with a vocabulary of this size
MIDDLE = Shape(4, 576, 49_152)
TINY = Shape(2, 64, 320)


@dataclass(frozen=True)
class Case:
    """One comparison of tokens/s.

    Args:
        title: what it is, in a line.
        goal: how many times the peer's tokens/s we want to reach; None: only to be known.
        shape: the model.
        settings: fields of SFTConfig.
        rows: "chats" of 30 to 500 tokens, or "long": as long as `max_length`.
        prompt_share: share of a row that is prompt, not learnt.
        steps: how many are timed; one more runs before, to warm up.
    """

    title: str
    goal: float | None
    shape: Shape
    settings: dict[str, Any]
    rows: Literal["chats", "long"] = "chats"
    prompt_share: float = 0.0
    steps: int = 2


_CHATS = {"max_length": 1024, "bf16": False}
_LONG = {"max_length": 4096, "per_device_train_batch_size": 1}
CASES = {
    "padded": Case(
        "8 rows a step, 30 to 500 tokens each; fp32", 1.3, WIDE, {**_CHATS, "per_device_train_batch_size": 8}
    ),
    "packed": Case(
        "2 packed rows of 1,024 tokens a step (bfd); fp32",
        1.3,
        WIDE,
        {**_CHATS, "per_device_train_batch_size": 2, "packing": True},
    ),
    "long": Case("one row of 4,096 tokens a step; bf16 autocast", 3.0, SMALL, {**_LONG, "bf16": True}, "long"),
    "long_fp32": Case("the same in fp32", None, SMALL, {**_LONG, "bf16": False}, "long"),
    "long_prompt": Case(
        "the same, three quarters of the row a prompt", None, SMALL, {**_LONG, "bf16": True}, "long", 0.75
    ),
    "long_wide": Case("the same, 4 layers of width 576", None, MIDDLE, {**_LONG, "bf16": True}, "long"),
}


def token_rows(case: Case) -> list[dict[str, list[int]]]:
    """Rows for all steps, the same for both sides. Lengths of chats are log-uniform from 30 to 500 tokens."""
    rng = random.Random(0)
    count = case.settings["per_device_train_batch_size"] * (case.steps + 1)
    if case.settings.get("packing"):
        count *= 8  # a packed row of 1,024 tokens takes about six chats; a few too many do no harm
    if case.rows == "long":
        lengths = [case.settings["max_length"]] * count
    else:
        lengths = [int(30 * (500 / 30) ** rng.random()) for _ in range(count)]
    made = []
    for length in lengths:
        ids = [rng.randrange(FIRST_PLAIN_ID, case.shape.vocabulary) for _ in range(length)]
        prompt = int(length * case.prompt_share)
        made.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return made


def conversations(count: int) -> list[dict[str, list[dict[str, str]]]]:
    """Short conversations for the start-up cases, as they come in a file of `messages`."""
    rng = random.Random(0)
    words = (
        "add",
        "after",
        "and",
        "answer",
        "comes",
        "is",
        "it",
        "number",
        "small",
        "that",
        "the",
        "then",
        "we",
        "what",
    )

    def text() -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randint(5, 60)))

    return [
        {"messages": [{"role": role, "content": text()} for role in ("user", "assistant") * rng.randint(1, 2)]}
        for _ in range(count)
    ]
