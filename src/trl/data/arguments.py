"""Where the rows come from, as arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ScriptArguments:
    """Arguments about the data set."""

    dataset_name: str | None = None
    """A local .json, .jsonl, .parquet or .csv file, a folder of such files, or a hub name."""
    dataset_config: str | None = None
    """Configuration of a data set on the hub."""
    dataset_train_split: str = "train"
    """Split to train on."""
    dataset_test_split: str = "test"
    """Split to evaluate on, where there is one and eval_strategy asks for it."""
    dataset_streaming: bool = False
    """Read the rows while training instead of preparing them all before; needs max_steps."""
    ignore_bias_buffers: bool = False
    """Leave boolean buffers (attention bias masks) out of what distributed training keeps in step."""
