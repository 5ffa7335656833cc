"""A command whose arguments are defined in a file that is parsed and never imported."""

from pathlib import Path

import pytest

from trl.cli.commands import ArgumentClass, Command

FIXTURE = Path(__file__).with_name("fixture") / "trainer.py"


@pytest.fixture
def toy() -> Command:
    return Command(
        name="toy",
        summary="Train a toy.",
        example="--model_name_or_path MODEL",
        classes=(ArgumentClass(str(FIXTURE), "ToyConfig", "Toys"), ArgumentClass(str(FIXTURE), "ToyModel", "Model")),
        first=("model_name_or_path", "config", "nproc_per_node", "learning_rate"),
        required=(("model_name_or_path",),),
    )
