"""Fields are read from source as Python would make them, without importing it."""

import dataclasses
import subprocess
import sys

import pytest

from tests.cli.conftest import FIXTURE
from trl.cli.commands import COMMANDS, ArgumentClass
from trl.cli.schema import command_schema, read_class, transformers_source


@pytest.fixture(scope="module")
def fields():
    return read_class(FIXTURE, "ToyConfig")


@pytest.mark.parametrize(
    ("name", "kinds", "default", "help"),
    [
        ("max_length", {"int"}, "1024", "Longest row in tokens. Longer rows are cut."),
        ("mode", {"str"}, "'fast'", "How."),
        ("level", {"int"}, "None", ""),
        ("packing", {"bool"}, "False", "Put several rows into one."),
        ("maybe", {"bool"}, "None", ""),
        ("names", {"list"}, "None", ""),
        ("numbers", {"list"}, "[1.0, 2.0]", "Some numbers."),
        ("extras", {"dict", "str"}, "None", ""),
        ("pad", {"int", "str"}, "'auto'", ""),
        ("shape", {"str"}, "'cosine'", "The shape."),
        ("mixed", {"bool", "str"}, "None", ""),
        ("share", {"float"}, "0.2", "Up to 20% of it."),
        ("kind", {"str"}, "'x'", ""),
        ("members", {"list"}, "[]", "Several."),
    ],
)
def test_every_way_to_write_a_field(fields, name, kinds, default, help):
    field = fields[name]
    assert (field.type.kinds, field.default, field.help, field.owner) == (kinds, default, help, "ToyConfig")


def test_types_in_detail(fields):
    assert fields["mode"].type.choices == ("fast", "slow")
    assert fields["level"].type.choices == (1, 2)
    assert fields["level"].type.optional
    assert not fields["mode"].type.optional
    assert fields["mixed"].type.choices == ()
    assert fields["shape"].type.choices == ("cosine", "flat")
    assert fields["numbers"].type.item.kinds == {"float"}
    assert fields["members"].type.item_class == "MemberConfig"


def test_what_is_no_argument(fields):
    assert not {"shared", "fallback", "hidden", "seed_only", "_VALID_DICT_FIELDS", "plan"} & set(fields)


def test_inheritance(fields):
    assert fields["learning_rate"].default == "2e-05"
    assert fields["learning_rate"].owner == "ToyConfig"
    assert (
        fields["learning_rate"].help
        == read_class(transformers_source("training_args.py"), "TrainingArguments")["learning_rate"].help
    )
    assert fields["global_batch_size"].owner == "TrainerConfig"
    assert fields["weight_decay"].owner == "TrainingArguments"
    assert list(fields)[-1] == "number"


def test_members_and_collisions(toy):
    schema = command_schema(toy)
    assert list(schema.members["members"]) == ["path", "fraction"]
    assert list(schema.fields)[-1] == "model_name_or_path"
    doubled = dataclasses.replace(toy, classes=(*toy.classes, ArgumentClass(str(FIXTURE), "ToyModel", "Again")))
    with pytest.raises(RuntimeError, match="already an argument of ToyModel"):
        command_schema(doubled)


def test_no_import_of_anything_heavy():
    code = (
        "import sys; from trl.cli.commands import COMMANDS; from trl.cli.help import command_help;"
        "from trl.cli.check import check_arguments; [command_help(c) for c in COMMANDS.values()];"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "transformers", "datasets", "numpy", "accelerate", "rich"} & set(modules)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_schema_is_what_python_says(command):
    """For the real classes: the same fields, the same defaults, and a description of each field of ours."""
    from importlib import import_module

    schema = command_schema(command)
    found = set()
    for entry in command.classes:
        module = import_module("trl." + entry.file.removesuffix(".py").replace("/", "."))
        for field in dataclasses.fields(getattr(module, entry.name)):
            if not field.init:
                continue
            found.add(field.name)
            ours = schema.fields[field.name]
            assert ours.help or ours.owner == "TrainingArguments", field.name
            default = field.default_factory() if field.default is dataclasses.MISSING else field.default
            shown = eval(ours.default, {})
            assert shown == default, field.name
    assert found == set(schema.fields)
    assert set(command.first) <= found | {"config", "nproc_per_node"}
    assert {name for group in command.required for name in group} <= found


def test_no_argument_is_also_a_flag_of_the_launcher():
    from trl.launch.flags import LAUNCH_FLAGS

    for command in COMMANDS.values():
        assert not set(command_schema(command).fields) & {
            *LAUNCH_FLAGS,
            "module",
            "no_python",
            "run_path",
            "config",
            "env",
        }
