"""The trainer that carries out the contract on `transformers.Trainer`.

The loop, optimisers, schedules, callbacks and trackers are transformers'. What is overridden here is what the contract
needs: which rows a step holds (`get_train_dataloader`), the one denominator (`get_batch_samples`), the one place that
scales a loss (`compute_loss`), evaluation that counts each row once, and what is logged.

Every gradient is a sum of shares. A rank's share is its total divided by the count over the whole global batch, and
ranks' gradients are summed (`distributed.ddp`), so no factor depends on the number of ranks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import IntervalStrategy

from ..distributed.ddp import reduce_gradients, sum_gradients
from ..distributed.drift import check_replicas
from ..errors import ConfigError, ModelError
from ..layout.deal import microbatch_of
from ..layout.order import Order
from ..layout.plan import BatchPlan
from ..layout.seeds import derive_seed
from ..models.policy import Policy
from .algorithm import Algorithm, MetricSums
from .config import TrainerConfig
from .console import ConsoleCallback
from .evaluation import evaluate_rows
from .loader import (
    CountingCollate,
    DealtStream,
    MicrobatchSampler,
    Numbered,
    StepLoader,
    StreamLoader,
    is_stream,
    lengths_of,
)
from .memory import Parts, documents_of, explained, split_batch
from .position import (
    check_contract,
    check_output_dir,
    contract_of,
    find_checkpoint,
    save_contract,
    skipped_checkpoints,
)
from .record import RunRecord, describe_model
from .throughput import Throughput


class ContractTrainer(transformers.Trainer):
    """A `transformers.Trainer` on which the layout of a run does not change its result.

    Args:
        algorithm: what a row's loss is.
        model: the model, with adapters if any, not wrapped.
        args: the configuration.
        layout: "flat" or "padded": how the collator lays out a batch.
    """

    args: TrainerConfig
    model: nn.Module
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any
    # The loss is divided by the count of the whole global batch: nothing is left to scale for accumulation.
    loss_is_scaled_for_ga = True

    def __init__(
        self, algorithm: Algorithm, model: nn.Module, args: TrainerConfig, *, layout: str, **trainer_arguments: Any
    ):
        check_output_dir(args)
        if not any(p.requires_grad for p in model.parameters()):
            raise ModelError("the model has no trainable parameter: training would change nothing")
        _check_data(args, trainer_arguments.get("train_dataset"), trainer_arguments.get("eval_dataset"))
        self.algorithm = algorithm
        self.layout = layout
        self.policy = Policy(model)
        super().__init__(model=model, args=args, **trainer_arguments)
        self.model_accepts_loss_kwargs = False
        self._metrics = MetricSums()
        self._throughput = Throughput(self.accelerator.device)
        self._step: list[dict[str, Any]] = []
        self._parts = Parts()
        self._record: RunRecord | None = None
        self._diverged = False
        self._install_console()

    # ---- which rows ----

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise ConfigError("there is nothing to train on", fix="pass train_dataset")
        order = None if is_stream(self.train_dataset) else self._order(len(self.train_dataset))
        return self._loader(self.train_dataset, self.args.plan, order)

    def _order(self, rows: int) -> Order:
        args = self.args
        order = Order(
            rows,
            args.plan.global_batch_size,
            args.order_seed,
            shuffle=args.train_sampling_strategy == "random",
            drop_last=args.dataloader_drop_last,
        )
        if order.steps_per_epoch == 0:
            raise ConfigError(
                f"dataloader_drop_last leaves nothing of {rows} rows: a step has {order.global_batch_size}",
                fix="leave it out: a short last step is exact here",
            )
        return order

    def prepared(self, rows: Any) -> Any:
        """Rows passed to `evaluate` or `predict`, in the form that the collator takes; to be overridden."""
        return rows

    def _loader(self, rows: Any, plan: BatchPlan, order: Order | None) -> DataLoader:
        """This rank's microbatches of `rows`; without an order, of a stream."""
        args = self.args
        workers: dict[str, Any] = {
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory,
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
        }
        rank, padded = args.process_index, self.layout == "padded"
        if order is None:
            stream = DealtStream(rows, plan, rank, self.data_collator, padded)
            return StreamLoader(stream, batch_size=None, **{**workers, "num_workers": min(1, workers["num_workers"])})
        sampler = MicrobatchSampler(order, plan, rank, lengths_of(rows), padded)
        return StepLoader(
            Numbered(rows), batch_sampler=sampler, collate_fn=CountingCollate(self.data_collator), **workers
        )

    # ---- the one denominator, and the one place that scales ----

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | None]:
        """This rank's microbatches of a step, and the count of the algorithm's units over the whole global batch."""
        self._throughput.step_begins()
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        self._step = []
        if not batches:
            return batches, None
        units = torch.stack([self.algorithm.count(b) for b in batches]).sum().cpu()
        rows = torch.stack([b["row_hash"] for b in batches]).sum()
        counts = torch.cat([torch.stack([units, rows]), self._throughput.counts(batches)])
        counts = self.sum_over_ranks(counts.to(device))
        self._rows_read = counts[1]
        self._throughput.add(counts[2:])
        if counts[0] == 0:
            self._warn_unsupervised()
        return batches, counts[0].clamp(min=1)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """This rank's share of the step's loss."""
        if return_outputs or num_items_in_batch is None:
            raise RuntimeError("the loss of a microbatch has no meaning without the count over its global batch")
        if self.compute_loss_func is not None:
            return self._users_loss(model, inputs, num_items_in_batch)
        loss = self.algorithm.loss(self.policy, model, inputs)
        self._metrics.add(loss.metrics)
        return loss.total / num_items_in_batch

    def training_step(  # type: ignore[override]
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        """Called by the loop for each microbatch; the whole step runs with its last one.

        Returns:
            the step's loss, the same on every rank, with its last microbatch, and 0 before.
        """
        self._step.append(inputs)
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.accelerator.device)
        sum_gradients(model)
        share = self._run_cut_to_fit(model, num_items_in_batch) if self.args.cut_to_fit else None
        if share is None:
            with explained():
                share = self._run_step(model, num_items_in_batch)
        self._step_loss = self.sum_over_ranks(share.detach().double().clone())
        return self._step_loss

    def _run_step(self, model: nn.Module, count: Tensor | None) -> Tensor:
        """All microbatches; DDP sums gradients during the last backward pass."""
        total = torch.zeros((), device=self.accelerator.device)
        for number, batch in enumerate(self._step):
            last = number == len(self._step) - 1
            with nullcontext() if last else self.accelerator.no_sync(model):
                total = total + self._run_microbatch(model, batch, count, number)
        return total

    def _run_cut_to_fit(self, model: nn.Module, count: Tensor | None) -> Tensor:
        """All microbatches, cut into parts until they fit on every rank; gradients are summed when all have run."""

        def attempt(parts: int) -> Tensor:
            total = torch.zeros((), device=self.accelerator.device)
            with self.accelerator.no_sync(model):
                for number, batch in enumerate(self._step):
                    for part, piece in enumerate(split_batch(batch, parts)):
                        total = total + self._run_microbatch(model, piece, count, number, part)
            return total

        def forget() -> None:
            model.zero_grad()
            self._metrics.restore(before)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

        before = self._metrics.copy()
        documents = max(documents_of(batch) for batch in self._step)
        finest = int(self._max_over_ranks(torch.tensor(documents, device=self.accelerator.device)))
        total = self._parts.run(
            attempt,
            lambda failed: bool(self._max_over_ranks(torch.tensor(int(failed), device=self.accelerator.device))),
            forget,
            finest,
            self._say,
        )
        reduce_gradients(model)
        return total

    def _run_microbatch(
        self, model: nn.Module, batch: dict[str, Any], count: Tensor | None, number: int, part: int = 0
    ) -> Tensor:
        """Forward and backward of one microbatch or a part of it. Dropout is a function of (seed, step, number of the
        microbatch in the job): the same for any dealing to ranks."""
        in_job = microbatch_of(self.args.process_index, number, self.args.plan.data_ranks)
        index = (self.state.global_step, in_job) if part == 0 else (self.state.global_step, in_job, part)
        torch.manual_seed(derive_seed(self.args.seed, "dropout", *index))
        return super().training_step(model, batch, count)

    def _users_loss(self, model: nn.Module, inputs: dict[str, Any], count: Tensor | int) -> Tensor:
        """`compute_loss_func(outputs, labels, num_items_in_batch)` returns a sum divided by that number."""
        outputs = self.policy.outputs(model, inputs)
        assert self.compute_loss_func is not None
        return self.compute_loss_func(outputs, inputs["labels"], num_items_in_batch=count)

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(values)
        return values

    def _max_over_ranks(self, value: Tensor) -> Tensor:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return value

    def _warn_unsupervised(self) -> None:
        rows = self.args.plan.global_batch_size
        self._say(
            f"warning: step {self.state.global_step + 1}: none of the {rows} rows has a supervised token; "
            "the step changes nothing"
        )

    # ---- evaluation ----

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        if isinstance(eval_dataset, str):
            assert isinstance(self.eval_dataset, dict)
            eval_dataset = self.eval_dataset[eval_dataset]
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if rows is None:
            raise ConfigError("there is nothing to evaluate on", fix="pass eval_dataset")
        return self._plain_loader(rows)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return self._plain_loader(test_dataset)

    def _plain_loader(self, rows: Any) -> DataLoader:
        """Rows in their own order, dealt so that each is read by one rank and every rank runs the same number."""
        ranks, size = self.args.plan.data_ranks, self.args.per_device_eval_batch_size
        plan = BatchPlan(size * ranks, size, 1, ranks)
        rows = self.prepared(rows)
        order = None if is_stream(rows) else Order(len(rows), plan.global_batch_size, seed=0, shuffle=False)
        return self._loader(rows, plan, order)

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """The loss over a data set: one sum over one count, each row once, the same on any number of ranks."""
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        with self._throughput.paused():
            return evaluate_rows(self, dataloader, description, metric_key_prefix, loss_only)

    def inference_model(self) -> nn.Module:
        """The model to run without gradient, under the run's autocast also where training has not begun."""
        if not self.accelerator._models and self.model_wrapped is self.model:
            return self.accelerator.prepare_model(self.model, evaluation_mode=True)
        return self.model

    # ---- what is logged ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update(self.reduced(self._metrics))
            logs.update(self._throughput.take(self.args.world_size))
        super().log(logs, start_time)

    def reduced(self, metrics: MetricSums) -> dict[str, float]:
        """(sum, weight) over all ranks and all microbatches since the last log; every rank must call this."""
        names = self._agreed_names(metrics.names)
        sums = self.sum_over_ranks(metrics.take(names, self.accelerator.device))
        return {name: (s / w).item() for name, (s, w) in zip(names, sums, strict=True) if w > 0}

    def _agreed_names(self, names: list[str]) -> list[str]:
        if self.args.world_size == 1:
            return names
        gathered: list[Any] = [None] * self.args.world_size
        dist.all_gather_object(gathered, names)
        return sorted(set().union(*gathered))

    def _maybe_log_save_evaluate(  # called by the loop at the end of every step, with what the step gave
        self, tr_loss: Tensor, grad_norm: Any, *args: Any, learning_rate: float | None = None, **kwargs: Any
    ) -> None:
        if self.is_world_process_zero() and self.state.global_step:
            self._note_step(grad_norm, learning_rate)
        self._check_drift()
        kwargs["learning_rate"] = learning_rate
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _check_drift(self) -> None:
        every = self.args.drift_check_steps
        due = self.control.should_save if every is None else every > 0 and self.state.global_step % every == 0
        if due:
            check_replicas(self.model.parameters(), self.state.global_step)

    def _note_step(self, grad_norm: Any, learning_rate: float | None) -> None:
        if self._record is None:
            run = {
                "arguments": self.args.to_dict(),
                "model": describe_model(self.model),
                "data": contract_of(self.args, self.train_dataset),
                "layout": dataclasses.asdict(self.args.plan),
            }
            self._record = RunRecord(Path(self.args.output_dir or "."), run, self._initial_global_step)
        loss = self._step_loss.item()
        if not self._diverged and not math.isfinite(loss):
            self._diverged = True
            self._say(f"warning: the loss of step {self.state.global_step} is {loss}: training diverged")
        entry = {
            "epoch": self.state.epoch,
            "loss": loss,
            "grad_norm": None if grad_norm is None else float(grad_norm),
            "learning_rate": learning_rate,
            "rows": f"{int(self._rows_read) % 2**64:016x}",
        }
        self._record.add(self.state.global_step, entry)

    def _say(self, text: str) -> None:
        if self.is_world_process_zero():
            print(text, flush=True)

    def _install_console(self) -> None:
        """One progress display instead of transformers' two."""
        for callback in (
            transformers.trainer_callback.PrinterCallback,
            transformers.trainer_callback.ProgressCallback,
        ):
            self.remove_callback(callback)
        self.console = ConsoleCallback(enabled=self.args.disable_tqdm is not True)
        self.add_callback(self.console)

    # ---- position: what a checkpoint records, and what must not change on resuming ----

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> Any:
        checkpoint = find_checkpoint(resume_from_checkpoint, self.args.output_dir)
        if checkpoint is not None:
            if skipped := skipped_checkpoints(checkpoint):
                self._say(f"going on from {checkpoint}; left out as incomplete: {', '.join(skipped)}")
            check_contract(Path(checkpoint), self.args, self.train_dataset)
        try:
            return super().train(resume_from_checkpoint=checkpoint, **kwargs)
        finally:
            self.console.close()
            if self._record is not None:
                self._record.close()
                self._record = None

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with self._throughput.paused():
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
                save_contract(folder, self.args, self.train_dataset)


def _check_data(args: TrainerConfig, train: Any, evaluation: Any) -> None:
    """What transformers would refuse later, in its own words."""
    if train is not None and is_stream(train) and args.max_steps <= 0:
        raise ConfigError(
            "a stream of rows has no end that is known, so it needs max_steps",
            fix="set max_steps to the steps to train",
        )
    if args.eval_strategy != "no" and evaluation is None:
        raise ConfigError(
            f"eval_strategy is {IntervalStrategy(args.eval_strategy).value}, but there is no eval_dataset",
            fix="pass eval_dataset, or leave eval_strategy out",
        )
