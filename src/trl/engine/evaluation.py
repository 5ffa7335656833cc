"""Evaluation: (sum, count) pairs reduced once, each row counted once, the same on any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

from ..errors import ConfigError
from .algorithm import MetricSums
from .loader import MicrobatchSampler

if TYPE_CHECKING:
    from .trainer import ContractTrainer

PAD = -100


def evaluate_rows(
    trainer: ContractTrainer, loader: DataLoader, description: str, prefix: str, loss_only: bool
) -> EvalLoopOutput:
    """Run the algorithm over `loader` without gradient.

    Returns:
        transformers' EvalLoopOutput: `{prefix}_loss` and the algorithm's metrics; with `compute_metrics` also its
        results over the predictions of all rows, in the order of the data set.
    """
    model = trainer.inference_model()
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=trainer.accelerator.device)
    metrics, predictions = MetricSums(), Predictions(trainer, loader) if not loss_only else None
    for number, batch in enumerate(loader):
        batch = trainer._prepare_inputs(batch)
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss = trainer.algorithm.loss(trainer.policy, model, batch)
            if predictions is not None:
                predictions.add(number, model, batch)
        sums += torch.stack([loss.total.double(), trainer.algorithm.count(batch).to(sums)])
        metrics.add(loss.metrics)
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
    sums = trainer.sum_over_ranks(sums)
    values = {f"{prefix}_{k}": v for k, v in trainer.reduced(metrics).items()}
    if sums[1] > 0:
        values[f"{prefix}_loss"] = (sums[0] / sums[1]).item()
    gathered = predictions.gathered() if predictions is not None else None
    if gathered is not None and trainer.compute_metrics is not None:
        computed = trainer.compute_metrics(gathered)
        values.update({k if k.startswith(prefix) else f"{prefix}_{k}": v for k, v in computed.items()})
    return EvalLoopOutput(
        predictions=None if gathered is None else gathered.predictions,  # type: ignore[arg-type]
        label_ids=None if gathered is None else gathered.label_ids,
        metrics=values,
        num_samples=_rows(loader),
    )


class Predictions:
    """Logits (or what `preprocess_logits_for_metrics` makes of them) and labels of every row, by row number."""

    def __init__(self, trainer: ContractTrainer, loader: DataLoader):
        if not isinstance(loader.batch_sampler, MicrobatchSampler):
            raise ConfigError(
                "predictions of a stream cannot be put in order", fix="evaluate on a data set with a length"
            )
        self.trainer, self.sampler = trainer, loader.batch_sampler
        self.rows: list[tuple[int, np.ndarray, np.ndarray]] = []

    def add(self, number: int, model: Any, batch: dict[str, torch.Tensor]) -> None:
        (rows,) = self.sampler.step(0, number)
        logits, labels = self.trainer.policy.outputs(model, batch).logits, batch["labels"]
        if self.trainer.preprocess_logits_for_metrics is not None:
            logits = self.trainer.preprocess_logits_for_metrics(logits, labels)
        lengths = self.sampler.lengths(rows)
        if self.sampler.padded:
            spans = [(b, slice(0, n)) for b, n in enumerate(lengths)]
        else:
            ends = np.cumsum(lengths).tolist()
            spans = [(0, slice(end - n, end)) for end, n in zip(ends, lengths, strict=True)]
        for row, (b, span) in zip(rows, spans, strict=True):
            self.rows.append((row, _numpy(logits[b, span]), _numpy(labels[b, span])))

    def gathered(self) -> EvalPrediction:
        """All rows of all ranks, padded with -100 to the longest. Every rank must call this."""
        everyone: list[Any] = [self.rows]
        if self.trainer.args.world_size > 1:
            everyone = [None] * self.trainer.args.world_size
            dist.all_gather_object(everyone, self.rows)
        rows = sorted((row for rank in everyone for row in rank), key=lambda row: row[0])
        return EvalPrediction(predictions=_stack([r[1] for r in rows]), label_ids=_stack([r[2] for r in rows]))


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    longest = max(len(a) for a in arrays)
    out = np.full((len(arrays), longest, *arrays[0].shape[1:]), PAD, dtype=arrays[0].dtype)
    for i, a in enumerate(arrays):
        out[i, : len(a)] = a
    return out


def _rows(loader: DataLoader) -> int:
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return 0
