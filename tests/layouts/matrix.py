"""The proof of the contract as a table: which layouts are run under which options, and how far they end up from each
other.

Layouts are (devices, per device, accumulation) of the same global batch of 32 rows. 203 rows of 5 to 200 tokens are
six full steps and one of 11 rows, twice. The distance is ||w - w_ref|| / ||w_ref - w_init|| with the first layout as
reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.engine.runs import Run, train

GLOBAL_BATCH = 32
ROWS = {"n": 203, "shortest": 5, "longest": 201}
LAYOUTS = [(1, 32, 1), (1, 4, 8), (2, 16, 1), (2, 4, 4), (3, 4, None), (4, 8, 1), (8, 4, 1)]
SOME = [(3, 4, None), (8, 4, 1)]
FP64, FP32 = 1e-10, 1e-5


@dataclass(frozen=True)
class Case:
    """Options that all layouts of a row of the table share.

    Attributes:
        name: how the row is called.
        layouts: those compared with the reference.
        tolerance: the largest distance allowed.
        options: arguments of `tests.engine.runs.train`.
    """

    name: str
    layouts: list[tuple[int, int, int | None]]
    tolerance: float
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("SGD, fp64", LAYOUTS, FP64),
    Case("SGD, fp32", LAYOUTS, FP32, {"dtype": "float32"}),
    Case("AdamW, fp32", LAYOUTS, FP32, {"dtype": "float32", "optim": "adamw_torch", "learning_rate": 1e-3}),
    Case("AdamW, fp64", SOME, FP64, {"optim": "adamw_torch", "learning_rate": 1e-3}),
    Case("LoRA, fp64", SOME, FP64, {"lora": True}),
    Case("gradient checkpointing, fp64", SOME, FP64, {"gradient_checkpointing": True}),
    Case("padded (eager attention), fp32", SOME, FP32, {"dtype": "float32", "model": {"attention": "eager"}}),
    Case(
        "padding-free (eager attention), fp32",
        SOME,
        FP32,
        {"dtype": "float32", "model": {"attention": "eager"}, "padding_free": True},
    ),
    Case("packed, fp64", SOME, FP64, {"packed": 256}),
    Case("LoRA, AdamW, packed, checkpointing, fp32", SOME, FP32, {
        "dtype": "float32", "lora": True, "optim": "adamw_torch", "learning_rate": 1e-3, "packed": 256,
        "gradient_checkpointing": True,
    }),
]  # fmt: skip


def run_layout(pool: Any, case: Case, layout: tuple[int, int, int | None]) -> list[Run]:
    """The runs of all ranks."""
    ranks, size, accumulation = layout
    return pool.run(
        train,
        ranks,
        rows=ROWS,
        global_batch_size=GLOBAL_BATCH,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        **case.options,
    )


def reference(pool: Any, case: Case) -> Run:
    return run_layout(pool, case, LAYOUTS[0])[0]


def describe(layout: tuple[int, int, int | None]) -> str:
    ranks, size, accumulation = layout
    return f"({ranks}, {size}, {accumulation or 'ragged'})"
