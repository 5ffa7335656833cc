"""The help: what matters first, every argument once, within the width."""

import re

import pytest

from trl.cli.commands import COMMANDS
from trl.cli.help import command_help
from trl.cli.schema import command_schema
from trl.launch.flags import LAUNCH_FLAGS


def options(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?--(?:\[no_\])?(\w+)", text, re.MULTILINE)


def test_order_and_content(toy):
    text = command_help(toy, width=100)
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert headings == [
        "What matters most",
        "Toys",
        "Batch, devices and memory",
        "Launch, as for torchrun (- or _, = or space)",
        "From transformers.TrainingArguments, which describes them in full",
    ]
    assert "--[no_]shuffle" in text
    assert "--mode {fast,slow}" in text
    assert "members: (in the YAML file)" in text
    assert "Longest row in tokens. Longer rows are cut. [1024]" in text


def test_every_argument_once(toy):
    schema = command_schema(toy)
    found = options(command_help(toy, width=100))
    assert sorted(found) == sorted({*schema.fields, *LAUNCH_FLAGS, "config"} - {"members"})
    assert found[: len(toy.first)] == list(toy.first)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_width(command, width):
    assert max(map(len, command_help(command, width).splitlines())) <= width
