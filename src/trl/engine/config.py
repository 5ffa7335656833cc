"""What every trainer's configuration shares: the batch contract, precision, checkpointing, and refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.utils import is_torch_bf16_gpu_available

from ..errors import ConfigError
from ..launch.environment import read_process_info
from ..launch.failure import install_excepthook
from ..launch.guard import die_with_parent
from ..layout.plan import BatchPlan, make_plan

_LATER = "it is not part of this version"


@dataclass
class TrainerConfig(TrainingArguments):
    """Arguments of every trainer, on top of `transformers.TrainingArguments`."""

    global_batch_size: int | None = None
    """Rows of one optimizer step over the whole job: the contract. With it, the two numbers below are solved for where
    not given, and a run moves to another number of devices without any other change. Without it, per device x devices
    x accumulation defines it."""
    per_device_train_batch_size: int | None = None  # type: ignore[assignment]
    """Most rows of one forward and backward pass on one device. By default 8, or what global_batch_size leaves."""
    gradient_accumulation_steps: int | None = None  # type: ignore[assignment]
    """Forward and backward passes per device and optimizer step. By default 1, or what global_batch_size leaves."""
    bf16: bool | None = None  # type: ignore[assignment]
    """bfloat16 autocast over fp32 weights. By default on where the accelerator supports it, off on a CPU."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass instead of keeping them: less memory, about a third more
    computation."""
    logging_steps: float = 10
    """Log every so many optimizer steps; below 1, a share of all steps."""
    logging_nan_inf_filter: bool = False
    """Log the average of earlier losses in place of one that is NaN or infinite. Off: a run that diverges shows it."""
    model_init_kwargs: dict[str, Any] | str | None = None
    """Arguments of `from_pretrained` where the model is given by name, as JSON on the command line."""
    trust_remote_code: bool = False
    """Run code that comes with the model or the tokenizer."""
    dataset_num_proc: int | None = None
    """Processes that prepare the data."""
    activation_offloading: bool = False
    """Keep the activations between forward and backward pass in host memory instead of the accelerator's."""
    drift_check_steps: int | None = None
    """Compare the weights of all ranks every so many steps and stop where one differs; 0 for never. By default
    whenever a checkpoint is saved."""
    pad_to_multiple_of: int | str | None = "auto"
    """Round the length of padded batches up to a multiple of this; "auto" rounds on accelerators, where odd shapes are
    slow, and not on a CPU."""

    plan: BatchPlan = field(init=False, repr=False)
    cut_to_fit: bool = field(init=False, default=False, repr=False)

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]  # noqa: RUF012

    def __post_init__(self) -> None:
        die_with_parent()
        install_excepthook()
        process = read_process_info()
        self._refuse_what_has_no_effect()
        self._check_values()
        self._solve_batch(process.world_size)
        self._choose_device_and_precision()
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing
        # transformers would restart the whole loop with a smaller batch; here the step alone is run again.
        self.cut_to_fit, self.auto_find_batch_size = self.auto_find_batch_size or self.cut_to_fit, False
        self.activation_checkpointing_kwargs = self._checkpointing_kwargs()
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = (
                False  # every parameter takes part in every loss, also in an empty microbatch
            )
        super().__post_init__()
        if self.world_size != process.world_size:
            raise ConfigError(
                f"{process.world_size} processes were started, but this one joined a job of {self.world_size}",
                why="the distributed backend did not come up",
                fix="check use_cpu and the backend of the device",
            )
        if self.n_gpu > 1:
            # One process with several GPUs would be torch's DataParallel, which scales losses wrongly and is slow.
            self._n_gpu = 1

    @property
    def order_seed(self) -> int:
        """The seed of the order of rows."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def pad_to(self) -> int | None:
        """What batches are padded to a multiple of."""
        if self.pad_to_multiple_of == "auto":
            return None if self.use_cpu else 8
        return None if self.pad_to_multiple_of is None else int(self.pad_to_multiple_of)

    def _solve_batch(self, world_size: int) -> None:
        self.plan = make_plan(
            world_size=world_size,
            global_batch_size=self.global_batch_size,
            per_device=self.per_device_train_batch_size,
            accumulation=self.gradient_accumulation_steps,
        )
        self.global_batch_size = self.plan.global_batch_size
        self.per_device_train_batch_size = self.plan.per_device
        self.gradient_accumulation_steps = self.plan.accumulation

    def _check_values(self) -> None:
        """What transformers would find after the model is loaded, if at all."""
        if not 0 <= self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate is {self.learning_rate}", fix="give a number from 0, such as 2e-5")
        if self.max_steps == 0:
            raise ConfigError("max_steps is 0", fix="give the number of steps, or leave it out to train by epochs")
        if self.report_to not in (None, "none", "all", [], ["none"], ["all"]):
            wanted = [self.report_to] if isinstance(self.report_to, str) else self.report_to
            here = get_available_reporting_integrations()
            missing = [name for name in wanted if name not in here]
            if missing:
                raise ConfigError(
                    f"report_to names {', '.join(missing)}, which is not installed or not known",
                    why=f"available here: {', '.join(here) or 'none'}",
                    fix=f"pip install {missing[0]}, or report_to none",
                )

    def _checkpointing_kwargs(self) -> dict[str, Any]:
        given = self.activation_checkpointing_kwargs or self.gradient_checkpointing_kwargs or {}
        given = json.loads(given) if isinstance(given, str) else given
        # Reentrant checkpointing marks a parameter ready twice under DDP with adapters.
        kwargs = {"use_reentrant": False, **given}
        if self.activation_offloading:
            if not self.activation_checkpointing:
                raise ConfigError("activation_offloading needs gradient_checkpointing", fix="set it to true")
            if self.use_cpu:
                raise ConfigError("activation_offloading is set, but there is no accelerator to offload from")
            kwargs["offload"] = True
        return kwargs

    def _choose_device_and_precision(self) -> None:
        if not torch.accelerator.is_available():
            # Without this, several processes on a CPU would each believe to be alone.
            self.use_cpu = True
        if self.fp16 and self.use_cpu:
            raise ConfigError("fp16 is set, but a CPU has no fp16 autocast", fix="use bf16, or neither")
        if self.bf16 is None:
            self.bf16 = not (self.fp16 or self.use_cpu) and is_torch_bf16_gpu_available()

    def _refuse_what_has_no_effect(self) -> None:
        later = {
            "fsdp": self.fsdp,
            "deepspeed": self.deepspeed,
            "parallelism_config": self.parallelism_config,
        }
        for name, value in later.items():
            if value:
                raise ConfigError(f"{name} is set, but {_LATER}", fix=f"leave {name} out")
        if self.label_smoothing_factor:
            raise ConfigError("label_smoothing_factor has no effect on the token loss", fix="leave it out")
        if self.train_sampling_strategy not in ("random", "sequential"):
            raise ConfigError(
                f"train_sampling_strategy {self.train_sampling_strategy!r} would change which rows a step trains on",
                why="the rows of a step are already dealt to devices by length",
                fix="use random or sequential",
            )
        for name in ("batch_eval_metrics", "include_for_metrics"):
            if getattr(self, name):
                raise ConfigError(f"{name} is set", fix=f"leave {name} out; compute_metrics sees all rows at once")
        if self.use_liger_kernel:
            raise ConfigError(
                "use_liger_kernel would replace the model's forward",
                why="the token loss already works without full logits",
                fix="leave it out",
            )
