"""The pair `examples/sft.yaml` and `examples/sft.py`: one run, from the command and from a script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
# What a run logs about its result; the rest is about time and memory.
RESULTS = ("step", "epoch", "loss", "eval_loss", "grad_norm", "learning_rate", "mean_token_accuracy", "num_tokens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the examples run: the tiny model, and what each of the two made of it."""
    folder = tmp_path_factory.mktemp("examples")
    run(folder, sys.executable, EXAMPLES / "make_tiny.py")
    config = ("--config", EXAMPLES / "sft.yaml")
    run(folder, BIN / "trl", "sft", *config, "--nproc_per_node", "2", "--output_dir", "out/command")
    launcher = (BIN / "torchrun", "--standalone", "--nproc_per_node", "2")
    run(folder, *launcher, EXAMPLES / "sft.py", *config, "--output_dir", "out/script")
    return folder / "out"


def run(folder: Path, *command: str | Path) -> None:
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"


def log(run: Path) -> list[dict[str, float]]:
    entries = json.loads((run / "trainer_state.json").read_text())["log_history"]
    results = [{key: entry[key] for key in RESULTS if key in entry} for entry in entries]
    return [entry for entry in results if "loss" in entry or "eval_loss" in entry]


def test_both_log_the_same(folder):
    command, script = log(folder / "command"), log(folder / "script")
    assert [entry["step"] for entry in command] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]
    assert [entry.keys() for entry in command] == [entry.keys() for entry in script]
    for ours, theirs in zip(command, script):
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_both_give_the_same_weights_and_these_were_trained(folder):
    start, command, script = (
        load_file(folder / made / "model.safetensors") for made in ("tiny/model", "command", "script")
    )
    assert start.keys() == command.keys() == script.keys()
    assert {tensor.dtype for tensor in command.values()} == {torch.float32}
    assert max((command[name] - script[name]).abs().max() for name in start) <= 1e-6
    # Ten steps with rates up to 1e-3 move some weight of every tensor far more than that.
    assert min((command[name] - start[name]).abs().max() for name in start) > 1e-3


def test_held_out_loss_falls(folder):
    first, last = (entry["eval_loss"] for entry in log(folder / "command") if "eval_loss" in entry)
    assert last < first


def test_result_loads_with_plain_transformers(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder / "command")
    model = AutoModelForCausalLM.from_pretrained(folder / "command")
    turns = [{"role": "user", "content": "What comes after 3?"}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**prompt, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    assert tokens.shape == (1, prompt["input_ids"].shape[1] + 2)
