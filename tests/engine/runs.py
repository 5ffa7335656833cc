"""Small runs of SFT that tests compare: the same global batches on different layouts."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ROWS = 83


@dataclass
class Run:
    """What a run left: weights as one vector, what was logged, and the rows each step saw."""

    weights: Tensor
    start: Tensor
    logs: list[dict[str, float]]
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def distance(self, other: Run) -> float:
        """||w - w'|| as a share of the distance trained."""
        return ((self.weights - other.weights).norm() / (other.weights - other.start).norm()).item()

    @property
    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.logs]


def token_rows(n: int = ROWS, seed: int = 0, longest: int = 60, supervised: bool = True, shortest: int = 3) -> Any:
    """Rows of very different lengths, some tokens of each supervised, one row not at all."""
    from datasets import Dataset

    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        length = int(torch.randint(shortest, longest, (), generator=g))
        ids = torch.randint(3, 380, (length,), generator=g).tolist()
        labelled = 0 if i == 5 or not supervised else int(torch.randint(1, length, (), generator=g))
        rows.append({"input_ids": ids, "labels": [-100] * (length - labelled) + ids[length - labelled :]})
    return Dataset.from_list(rows)


def pack_rows(rows: Any, length: int) -> Any:
    """Documents end to end in rows of at most `length` tokens, in the order they come."""
    from datasets import Dataset

    packed: list[dict[str, list[int]]] = []
    for row in rows:
        if not packed or len(packed[-1]["input_ids"]) + len(row["input_ids"]) > length:
            packed.append({"input_ids": [], "labels": [], "seq_lengths": []})
        packed[-1]["input_ids"] += row["input_ids"]
        packed[-1]["labels"] += row["labels"]
        packed[-1]["seq_lengths"].append(len(row["input_ids"]))
    return Dataset.from_list(packed)


def train(
    dtype: str = "float64", model: dict | None = None, lora: bool = False, rows: dict | None = None, **over: Any
) -> Run:
    """Train the tiny model on `token_rows()`; called on every rank of a pool."""
    from tests.fixtures.tiny import tiny_model, tiny_tokenizer
    from trl.trainers.sft import SFTConfig, SFTTrainer

    tokenizer = tiny_tokenizer()
    model = dict(model or {})
    attention = model.pop("attention", "sdpa")
    net = tiny_model(tokenizer, "llama", dtype=getattr(torch, dtype), **model)
    net.set_attn_implementation(attention)
    arguments = {
        "output_dir": tempfile.mkdtemp(),
        "num_train_epochs": 2,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 3,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "gradient_checkpointing": False,
        **over,
    }
    evaluate = arguments.pop("eval_rows", None)
    peft_config = None
    if lora:
        from peft import LoraConfig

        peft_config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    packed = arguments.pop("packed", None)
    data = token_rows(**(rows or {}))
    resume, callbacks = arguments.pop("resume", None), arguments.pop("callbacks", None)
    torch.manual_seed(0)
    trainer = SFTTrainer(
        model=net,
        args=SFTConfig(**arguments),
        train_dataset=pack_rows(data, packed) if packed else data,
        eval_dataset=token_rows(evaluate, seed=9) if evaluate else None,
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=callbacks,
    )
    start = _vector(trainer.model)
    trainer.train(resume_from_checkpoint=resume)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    evaluations = [trainer.evaluate()] if evaluate else []
    return Run(_vector(trainer.model), start, json.loads(json.dumps(logs)), evaluations)


def _vector(model: torch.nn.Module) -> Tensor:
    parts = [p.detach().double().flatten().clone() for _, p in sorted(model.named_parameters()) if p.requires_grad]
    return torch.cat(parts)
