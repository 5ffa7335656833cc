"""Equal content, equal hash: in every process, wherever the rows lie; and a different hash for every difference."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, concatenate_datasets, load_from_disk

from tests.data import templates
from tests.fixtures.tiny import tiny_tokenizer
from trl.data.fingerprint import UnstableError, dataset_fingerprint, function_fingerprint, tokenizer_fingerprint

ROOT = Path(__file__).parents[2]
ROWS: dict[str, list[Any]] = {
    "text": ["a", None, "", "äö", "e"] * 5000,
    "n": list(range(25_000)),
    "messages": [[{"role": "user", "content": "x"}], []] * 12_500,
}


def test_rows_count_and_not_where_they_lie(tmp_path: Path) -> None:
    data = Dataset.from_dict(ROWS)
    data.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    shuffled = data.shuffle(seed=0)
    back = sorted(range(len(data)), key=shuffled["n"][:].__getitem__)
    same = [
        Dataset.from_dict(ROWS),
        load_from_disk(str(tmp_path / "saved")),
        shuffled.select(back),
        data.select([*range(len(data))]),
        concatenate_datasets(
            [data.select(range(7)), data.select(range(7, 12_001)), data.select(range(12_001, 25_000))]
        ),
        concatenate_datasets([data, data]).select(range(25_000, 50_000)),
        data.with_format("torch"),
    ]
    assert [dataset_fingerprint(d) for d in same] == [dataset_fingerprint(data)] * len(same)


def test_every_difference_counts() -> None:
    data = Dataset.from_dict(ROWS)
    changed = [
        data,
        data.select(range(24_999)),
        data.select([1, 0, *range(2, 25_000)]),
        data.rename_column("n", "m"),
        data.select_columns(["text", "n"]),
        Dataset.from_dict(ROWS | {"text": [*ROWS["text"][:-1], "f"]}),
        Dataset.from_dict(ROWS | {"text": [*ROWS["text"][:-1], ""]}),
        Dataset.from_dict(ROWS | {"text": [*ROWS["text"][:-1], None]}),
        Dataset.from_dict(ROWS | {"n": [float(i) for i in range(25_000)]}),
    ]
    assert len({dataset_fingerprint(d) for d in changed}) == len(changed)


def test_values_cannot_move_between_rows() -> None:
    assert dataset_fingerprint(Dataset.from_dict({"t": ["ab", "c"]})) != dataset_fingerprint(
        Dataset.from_dict({"t": ["a", "bc"]})
    )


def test_tokenizers() -> None:
    base = tokenizer_fingerprint(tiny_tokenizer())
    used = tiny_tokenizer()
    used(["a", "b c"], padding=True, truncation=True, max_length=4)
    assert tokenizer_fingerprint(used) == base
    added = tiny_tokenizer()
    added.add_tokens(["<|x|>"])
    other_eos = tiny_tokenizer()
    other_eos.eos_token = "<|endoftext|>"
    others = [
        tiny_tokenizer(vocab_size=300),
        tiny_tokenizer(chat_template=templates.PLAIN_WORDS),
        tiny_tokenizer(chat_template=None),
        added,
        other_eos,
    ]
    assert len({base, *map(tokenizer_fingerprint, others)}) == 1 + len(others)


# ---------------------------------------------------------------------------------------------------------- functions

FACTOR = 2


def _helper(x: int) -> int:
    return x * FACTOR


def _make(word: Any) -> Any:
    return lambda row: f"{row}{word}"


def _source(text: str) -> Any:
    """A function from source, as another version of a script would define it."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["f"]


def test_functions() -> None:
    versions = [
        "def f(row): return row['a']",
        "def f(row): return row['b']",
        "def f(row): return row['a'] + 'x'",
        "def f(row, k=1): return row['a']",
        "def f(row, k=2): return row['a']",
        "def f(row, *, k=2): return row['a']",
        "K = 1\ndef f(row): return row['a'] * K",
        "K = 2\ndef f(row): return row['a'] * K",
        "def g(x): return x\ndef f(row): return g(row)",
        "def g(x): return x + 1\ndef f(row): return g(row)",
        "import json\ndef f(row): return json.dumps(row)",
        "import html as json\ndef f(row): return json.dumps(row)",
        "def f(row): return row in {'a', 'b', 'c'}",
        "def f(row): return [x for x in row if x == 1]",
        "def f(row): return [x for x in row if x == 2]",
        "def f(row): return f(row[1:])",
    ]
    hashes = [function_fingerprint(_source(text)) for text in versions]
    assert len(set(hashes)) == len(versions)
    assert hashes == [function_fingerprint(_source(text)) for text in versions]


class Writer:
    def __init__(self, sign: str) -> None:
        self.sign = sign

    def write(self, row: dict[str, Any]) -> str:
        return row["a"] + self.sign

    __call__ = write


def test_what_a_function_has_captured_counts() -> None:
    captured: list[Any] = [1, "1", 1.0, True, None, b"1", [1], (1,), {1}, {"a": 1}, Path("a"), re.compile("a")]
    captured += [_helper, Writer("a"), Writer("b"), tiny_tokenizer(), tiny_tokenizer(chat_template=None), os.path.join]
    functions = [_make(word) for word in captured]
    functions += [functools.partial(_helper, 1), functools.partial(_helper, 2), Writer("a").write, Writer("b").write]
    functions += [Writer("a"), Writer("b")]
    hashes = [function_fingerprint(function) for function in functions]
    assert len(set(hashes)) == len(functions)
    assert hashes[13] == function_fingerprint(_make(Writer("a")))


def test_what_has_no_stable_content_is_said() -> None:
    with pytest.raises(UnstableError, match="lock"):
        function_fingerprint(_make(threading.Lock()))


PROBE = """
import sys; sys.path.insert(0, {root!r})
from datasets import Dataset
from tests.data.test_fingerprint import ROWS, _helper, _make, Writer
from tests.fixtures.tiny import tiny_tokenizer
from trl.data.fingerprint import *
words = {{"a", "b", "c", "d", "e"}}
print(dataset_fingerprint(Dataset.from_dict(ROWS)), tokenizer_fingerprint(tiny_tokenizer()),
      function_fingerprint(_make([words, _helper, Writer("a"), tiny_tokenizer()])))
"""


def test_two_fresh_processes_agree() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROBE.format(root=str(ROOT))],
            env=os.environ | {"PYTHONHASHSEED": seed, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    ]
    assert len(outputs[0].split()) == 3
    assert outputs[0] == outputs[1]
