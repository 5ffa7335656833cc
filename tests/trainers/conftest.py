"""A tiny model on disk and small data sets of every kind."""

import pytest
import torch

from tests.fixtures.tiny import save_tiny, tiny_model, tiny_tokenizer

CHATS = [
    [{"role": "user", "content": f"What is {a}+{b}?"}, {"role": "assistant", "content": str(a + b)}]
    for a in range(3)
    for b in range(4)
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    save_tiny(folder, tokenizer, tiny_model(tokenizer, "llama"))
    return str(folder)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)


@pytest.fixture
def chats():
    from datasets import Dataset

    return Dataset.from_list([{"messages": m} for m in CHATS])


@pytest.fixture
def config(tmp_path):
    """A function that makes an SFTConfig of a short run."""
    from trl import SFTConfig

    def make(**over):
        arguments = {
            "output_dir": str(tmp_path / "out"),
            "max_steps": 2,
            "global_batch_size": 4,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            **over,
        }
        return SFTConfig(**arguments)

    return make
