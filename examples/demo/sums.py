"""The task: sums and differences of two numbers, from the generator `chain_sum` of reasoning-gym."""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

SYSTEM = "Answer with a number."

Row = dict[str, list[dict[str, str]]]


def chain_sum(package: Path, seed: int) -> Iterator[Mapping[str, Any]]:
    """Items with a "question" and its "answer", without end: two terms of one or two digits.

    Args:
        package: the unpacked folder `reasoning_gym`.
        seed: decides all items.
    """
    # Importing the package would import its hundred generators and all that they need; this one needs nothing.
    for name, folder in (("reasoning_gym", package), ("reasoning_gym.arithmetic", package / "arithmetic")):
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules.setdefault(name, module)
    generator = importlib.import_module("reasoning_gym.arithmetic.chain_sum")
    config = generator.ChainSumConfig(min_terms=2, max_terms=2, min_digits=1, max_digits=2, seed=seed)
    items = generator.ChainSumDataset(config)
    return (items[index] for index in count())


def split(items: Iterable[Mapping[str, Any]], train: int, test: int) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and held-out rows whose questions are distinct and never among the former."""
    items = iter(items)
    held_out: dict[str, Row] = {}
    while len(held_out) < test:
        item = next(items)
        held_out.setdefault(item["question"], conversation(item))
    others = (conversation(item) for item in items if item["question"] not in held_out)
    return list(islice(others, train)), list(held_out.values())


def conversation(item: Mapping[str, Any]) -> Row:
    """An item as a row of the format `messages`."""
    turns = (("system", SYSTEM), ("user", item["question"]), ("assistant", item["answer"]))
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def question_of(row: Row) -> list[dict[str, str]]:
    """The turns before the answer."""
    return row["messages"][:-1]


def answer_of(row: Row) -> str:
    """The right answer."""
    return row["messages"][-1]["content"]


def write_jsonl(rows: Iterable[Row], file: Path) -> None:
    """One row a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
