"""What a person sees on rank 0: the plan before the first step, progress with the time left, lines of numbers, a
summary.

On a terminal a `rich` progress bar; elsewhere (log files, Slurm) plain lines, one a log.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from transformers import TrainerCallback, TrainerControl, TrainerState

from .config import TrainerConfig

# What a line of progress shows, in this order: name in the logs -> how it reads. Short enough for 120 columns.
_LINE = {
    "loss": lambda v: f"loss {v:.4f}",
    "eval_loss": lambda v: f"held-out loss {v:.4f}",
    "mean_token_accuracy": lambda v: f"acc {v:.3f}",
    "eval_mean_token_accuracy": lambda v: f"held-out acc {v:.3f}",
    "grad_norm": lambda v: f"grad {v:.3g}",
    "learning_rate": lambda v: f"lr {v:.1e}",
    "tokens_per_second": lambda v: f"{v:,.0f} tok/s",
    "tokens_per_second_per_device": lambda v: f"{v:,.0f}/device",
    "supervised_tokens_per_second": lambda v: f"{v:,.0f} supervised",
    "padding_share": lambda v: f"pad {v:.0%}",
    "peak_memory_gib": lambda v: f"{v:.1f} GiB",
    "epoch": lambda v: f"epoch {v:.2f}",
}


def describe(logs: dict[str, float]) -> str:
    """One line of the numbers that are worth a look while training."""
    return "  ".join(show(logs[name]) for name, show in _LINE.items() if isinstance(logs.get(name), int | float))


class ConsoleCallback(TrainerCallback):
    """Progress of training and evaluation on the first process; silent on all others.

    Args:
        enabled: show the bar and the lines; the plan and the summary are always shown.
    """

    def __init__(self, enabled: bool = True):
        self.enabled = enabled
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.first_loss: float | None = None
        self.last: dict[str, float] = {}
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._started = time.monotonic()
        loader = kwargs.get("train_dataloader")
        self.say(f"global batch: {args.plan}")
        self.say(_schedule(args, state, loader))
        if self.enabled and self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=self.console,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if "loss" in logs:
            self.first_loss = logs["loss"] if self.first_loss is None else self.first_loss
            self.last = dict(logs)
            if self._bar is not None:
                self._bar.update(self._task, description=f"loss {logs['loss']:.4f}")
        if self.enabled:
            self.say(f"step {state.global_step}/{state.max_steps or '?'}  {describe(logs)}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.close()
        if state.is_world_process_zero and self.last:
            self.console.print(self._summary(state))

    def close(self) -> None:
        """Take the bar off the screen; safe to call at any time."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """A line above the bar. Plain text: no markup is read from it."""
        self.console.print(text, markup=False)

    def _summary(self, state: TrainerState) -> Table:
        elapsed = time.monotonic() - self._started
        table = Table(title="training finished", show_header=False, title_justify="left")
        loss = f"{self.first_loss:.4f} -> {self.last['loss']:.4f}"
        rows = {
            "steps": f"{state.global_step} in {_duration(elapsed)}",
            "epochs": f"{state.epoch:.2f}" if state.epoch is not None else "",
            "loss": loss,
            "held-out loss": _evaluations(state),
            "tokens": f"{self.last.get('num_tokens', 0):,.0f}",
            "tokens/s": f"{self.last.get('tokens_per_second', 0):,.0f}"
            f" ({self.last.get('tokens_per_second_per_device', 0):,.0f} a device)",
            "padding": f"{self.last.get('padding_share', 0):.1%}",
            "peak memory": f"{self.last.get('peak_memory_gib', 0):.2f} GiB a process",
        }
        for name, value in rows.items():
            if value:
                table.add_row(name, value)
        return table


def _schedule(args: TrainerConfig, state: TrainerState, loader: Any) -> str:
    try:
        microbatches: int | None = len(loader)
    except TypeError:
        microbatches = None
    if microbatches is None:
        return f"{state.max_steps} steps over a stream of rows"
    per_epoch = microbatches // args.plan.accumulation
    rows = len(loader.dataset)
    text = f"{rows} rows = {per_epoch} steps an epoch; {state.max_steps} steps in all"
    if state.global_step:
        text += f", going on after step {state.global_step}"
    return text


def _evaluations(state: TrainerState) -> str:
    losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
    return " -> ".join(f"{v:.4f}" for v in (losses[:1] + losses[-1:] if len(losses) > 1 else losses))


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds:.0f} s" if minutes else f"{seconds:.1f} s"


class RichProgressCallback(ConsoleCallback):
    """The progress display under the name that users import. Every trainer of this package already has it."""
