"""What a model answers: loaded and run with plain transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from .sums import Row, answer_of, question_of

MAX_NEW_TOKENS = 8  # the longest right answer has three and the end of the turn


def answers(model: Path, rows: Sequence[Row], dtype: torch.dtype) -> list[str]:
    """The greedy answers of the model in the folder `model` to the questions of `rows`, in their order."""
    disable_progress_bar()  # loading takes a second
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    questions = [question_of(row) for row in rows]
    prompts: Any = tokenizer.apply_chat_template(
        questions, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        tokens = network.generate(**prompts, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    texts = tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in texts]


def exact(given: Sequence[str], rows: Sequence[Row]) -> float:
    """The share of answers that are the right number and nothing else."""
    return sum(text == answer_of(row) for text, row in zip(given, rows, strict=True)) / len(rows)
