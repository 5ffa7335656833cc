"""What `sft.py` compares: models, rows and settings. Standard library only; both environments read this file.

All models are Llamas with random weights (speed does not depend on the weights), a vocabulary of 49,152 tokens and
tied embeddings. `WIDE` is the width of a 135M model at 12 of its 30 layers. `SMALL` is the shape of the smallest
published models that have a vocabulary of this size: 6 layers of width 256, 17M parameters.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 49_152
FIRST_PLAIN_ID = 10  # below are the special tokens


@dataclass(frozen=True)
class Shape:
    """A Llama. Heads have 64 channels, and a third of them (at least one) have keys and values of their own."""

    layers: int
    hidden: int
    vocabulary: int = VOCABULARY

    @property
    def config(self) -> dict[str, Any]:
        """Arguments of `LlamaConfig`."""
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


WIDE = Shape(12, 576)
SMALL = Shape(6, 256)
TINY = Shape(2, 64, 320)


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        title: what it is, in a line.
        goal: times the peer's tokens/s (of start-up: the peer's time over ours) that we want to reach.
        settings: fields of SFTConfig.
        prompt_share: share of a row that is prompt, not learnt.
    """

    title: str
    goal: float | None
    shape: Shape
    settings: dict[str, Any]
    prompt_share: float = 0.0
    kind: str = "chat"
    measured: dict[str, int] = field(default_factory=lambda: {"steps": 3})

    @property
    def steps(self) -> int:
        """Steps that are timed; one more runs before, to warm up."""
        return self.measured["steps"]


CASES = {
    "padded": Case(
        "8 rows a step, 30 to 500 tokens each",
        1.3,
        WIDE,
        {"per_device_train_batch_size": 8, "max_length": 1024},
    ),
    "packed": Case(
        "2 packed rows of 1,024 tokens a step (bfd)",
        1.3,
        WIDE,
        {"per_device_train_batch_size": 2, "max_length": 1024, "packing": True},
        kind="many",
    ),
    "long": Case(
        "one row of 4,096 tokens a step, all learnt",
        3.0,
        SMALL,
        {"per_device_train_batch_size": 1, "max_length": 4096},
        kind="long",
    ),
}


def token_rows(case: Case) -> list[dict[str, list[int]]]:
    """Rows for all steps, the same for both sides. Lengths of chats are log-uniform from 30 to 500 tokens."""
    rng = random.Random(0)
    steps, batch = case.steps + 1, case.settings["per_device_train_batch_size"]
    if case.kind == "long":
        lengths = [case.settings["max_length"]] * steps
    else:
        # A packed row of 1,024 tokens takes about six chats; a few rows more than needed do no harm.
        count = batch * steps * (8 if case.kind == "many" else 1)
        lengths = [int(30 * (500 / 30) ** rng.random()) for _ in range(count)]
    rows = []
    for length in lengths:
        ids = [rng.randrange(FIRST_PLAIN_ID, case.shape.vocabulary) for _ in range(length)]
        prompt = int(length * case.prompt_share)
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


def conversations(count: int) -> list[dict[str, list[dict[str, str]]]]:
    """Short conversations for the start-up case, as they come in a file of `messages`."""
    rng = random.Random(0)
    words = (
        "add",
        "and",
        "answer",
        "comes",
        "after",
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
