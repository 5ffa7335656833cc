"""The demo's rows, scores and curve."""

import json

import pytest
from examples.demo.answers import exact
from examples.demo.curve import draw, losses
from examples.demo.sums import answer_of, chain_sum, question_of, split, write_jsonl


def items():
    """Endless sums in which every question returns after 30 others."""
    number = 0
    while True:
        yield {"question": f"{number % 30} + 1 =", "answer": str(number % 30 + 1)}
        number += 1


def questions(rows):
    return [question_of(row)[-1]["content"] for row in rows]


def test_held_out_questions_are_distinct_and_never_trained_on():
    train, test = split(items(), train=100, test=10)
    assert (len(train), len(test)) == (100, 10)
    assert len(set(questions(test))) == 10
    assert set(questions(train)).isdisjoint(questions(test))


def test_a_repeated_question_is_held_out_once():
    repeated = iter([{"question": q, "answer": "0"} for q in "aabbcadc"])
    train, test = split(repeated, train=3, test=2)
    assert questions(test) == ["a", "b"]
    assert questions(train) == ["c", "d", "c"]


def test_rows_are_conversations_that_end_with_the_answer():
    _, (row,) = split(items(), train=0, test=1)
    assert [turn["role"] for turn in row["messages"]] == ["system", "user", "assistant"]
    assert answer_of(row) == "1"
    assert question_of(row) == row["messages"][:2]


def test_jsonl_has_a_row_a_line(tmp_path):
    rows, _ = split(items(), train=3, test=0)
    write_jsonl(rows, tmp_path / "data" / "train.jsonl")
    assert [json.loads(line) for line in (tmp_path / "data" / "train.jsonl").read_text().splitlines()] == rows


def test_an_answer_counts_only_if_it_is_the_number():
    _, rows = split(items(), train=0, test=4)
    assert exact(["1", "2", "The answer is 3", "5"], rows) == 0.5


def test_generator_is_imported_without_the_rest_of_its_package(tmp_path, monkeypatch):
    """A stand-in for the package whose other modules cannot be imported."""
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "reasoning_gym"
    (package / "arithmetic").mkdir(parents=True)
    for folder in (package, package / "arithmetic"):
        (folder / "__init__.py").write_text("raise ImportError('needs a C compiler')\n")
    (package / "arithmetic" / "chain_sum.py").write_text(
        "ChainSumConfig = dict\n"
        "def ChainSumDataset(config):\n"
        "    return [{'question': str(i), 'answer': str(config['seed'])} for i in range(5)]\n"
    )
    generated = chain_sum(package, seed=3)
    assert next(generated) == {"question": "0", "answer": "3"}
    assert next(generated) == {"question": "1", "answer": "3"}
    for name in [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]:
        del sys.modules[name]


LOG = [
    {"step": 0, "eval_loss": 3.0},
    {"step": 1, "loss": 2.5, "grad_norm": 1.0},
    {"step": 2, "loss": 2.0},
    {"step": 2, "eval_loss": 1.5},
    {"step": 2, "train_runtime": 9.0, "train_loss": 2.25},
]


def test_losses_come_from_the_entries_that_have_them():
    assert losses(LOG, "loss") == [(1, 2.5), (2, 2.0)]
    assert losses(LOG, "eval_loss") == [(0, 3.0), (2, 1.5)]


def test_curve_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    draw(LOG, tmp_path / "loss.png")
    from matplotlib.image import imread

    assert imread(tmp_path / "loss.png").std() > 0.05  # something is drawn on it
