"""Arguments are checked before anything is started; the command line wins over the file in every spelling."""

import pytest

from trl.cli.check import check_arguments
from trl.errors import ConfigError

MODEL = ["--model_name_or_path", "m"]


def write(tmp_path, text):
    path = tmp_path / "toy.yaml"
    path.write_text("model_name_or_path: m\n" + text)
    return str(path)


@pytest.mark.parametrize(
    ("words", "name", "value", "plain"),
    [
        (["--learning_rate", "3e-4"], "learning_rate", 3e-4, ["--learning_rate", "3e-4"]),
        (["--learning-rate=3e-4"], "learning_rate", 3e-4, ["--learning_rate", "3e-4"]),
        (["--max_steps", "-1"], "max_steps", -1, ["--max_steps", "-1"]),
        (["--packing"], "packing", True, ["--packing", "true"]),
        (["--packing", "False"], "packing", False, ["--packing", "False"]),
        (["--packing=yes"], "packing", True, ["--packing", "yes"]),
        (["--no_shuffle"], "shuffle", False, ["--shuffle", "false"]),
        (["--no-shuffle"], "shuffle", False, ["--shuffle", "false"]),
        (["--maybe"], "maybe", True, ["--maybe", "true"]),
        (["--names", "a", "b"], "names", ["a", "b"], ["--names", "a", "b"]),
        (["--numbers", "1", "2e3"], "numbers", [1.0, 2000.0], ["--numbers", "1", "2e3"]),
        (["--extras", '{"a": [1]}'], "extras", {"a": [1]}, ["--extras", '{"a": [1]}']),
        (["--extras", "file.json"], "extras", "file.json", ["--extras", "file.json"]),
        (["--pad", "8"], "pad", 8, ["--pad", "8"]),
        (["--pad", "auto"], "pad", "auto", ["--pad", "auto"]),
        (["--mode", "slow"], "mode", "slow", ["--mode", "slow"]),
        (["--level", "2"], "level", 2, ["--level", "2"]),
        (["--report_to", "wandb"], "report_to", "wandb", ["--report_to", "wandb"]),
        (["--run_name", "true"], "run_name", "true", ["--run_name", "true"]),
        (["--max_length", "1", "--max-length=2"], "max_length", 2, ["--max_length", "1", "--max_length", "2"]),
    ],
)
def test_words(toy, words, name, value, plain):
    checked = check_arguments(toy, [*MODEL, *words])
    assert checked.values == {"model_name_or_path": "m", name: value}
    assert type(checked.values[name]) is type(value)
    assert checked.arguments == [*MODEL, *plain]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("learning_rate: 3e-4", "learning_rate", 3e-4),
        ("learning-rate: 1", "learning_rate", 1.0),
        ("learning_rate: '0.5'", "learning_rate", 0.5),
        ("max_length: null", "max_length", None),
        ("packing: true", "packing", True),
        ("packing: 'false'", "packing", False),
        ("names: [a, b]", "names", ["a", "b"]),
        ("numbers: [1, 2.5]", "numbers", [1.0, 2.5]),
        ("extras: {a: 1e-3}", "extras", {"a": 1e-3}),
        ("run_name: 12", "run_name", "12"),
        ("mode: slow", "mode", "slow"),
        ("eval_strategy: 'no'", "eval_strategy", "no"),
        ("report_to: [wandb, tensorboard]", "report_to", ["wandb", "tensorboard"]),
        (
            "members:\n  - path: a\n  - path: b\n    fraction: 0.5",
            "members",
            [{"path": "a"}, {"path": "b", "fraction": 0.5}],
        ),
    ],
)
def test_files(toy, tmp_path, text, name, value):
    path = write(tmp_path, text)
    checked = check_arguments(toy, ["--config", path])
    assert checked.values == {"model_name_or_path": "m", name: value}
    assert checked.arguments == ["--config", path]


@pytest.mark.parametrize("key", ["learning_rate", "learning-rate"])
@pytest.mark.parametrize(
    "words", [["--learning_rate", "2"], ["--learning_rate=2"], ["--learning-rate", "2"], ["--learning-rate=2"]]
)
@pytest.mark.parametrize("config_first", [True, False])
def test_the_command_line_wins(toy, tmp_path, key, words, config_first):
    config = ["--config", write(tmp_path, f"{key}: 1\nnproc-per-node: 4\n")]
    flags = [
        words[0].replace("learning-rate", "nproc-per-node").replace("learning_rate", "nproc_per_node"),
        *words[1:],
    ]
    argv = [*config, *words, *flags] if config_first else [*words, *flags, *config]
    checked = check_arguments(toy, argv)
    assert checked.values["learning_rate"] == 2.0
    assert checked.flags == {"nproc_per_node": "2"}
    assert checked.arguments == [*config, "--learning_rate", "2"]


def test_environment_of_the_file(toy, tmp_path):
    path = write(tmp_path, "env:\n  NAME: 1\n")
    assert check_arguments(toy, ["--config", path]).environment == {"NAME": "1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rat", "3"], "unknown argument --learning_rat; did you mean --learning_rate?"),
        (["--nproc-per-nod=3"], "unknown argument --nproc-per-nod; did you mean --nproc_per_node?"),
        (["--num_processes", "8"], "unknown argument --num_processes; here it is called --nproc_per_node"),
        (["--xyzzy", "8"], "unknown argument --xyzzy\n"),
        (["--no_learning_rate"], "unknown argument --no_learning_rate"),
        (["--learning_rate", "abc"], "--learning_rate takes a number, not 'abc'"),
        (["--learning-rate"], "--learning-rate needs a value: a number"),
        (["--max_length", "1.5"], "--max_length takes a whole number, not '1.5'"),
        (["--packing", "maybe"], "--packing takes true or false, not 'maybe'"),
        (["--no_packing", "true"], "--no_packing takes no value, but 'true' was given"),
        (["--mode", "quick"], "--mode takes one of fast, slow, not 'quick'"),
        (["--level", "3"], "--level takes one of 1, 2, not '3'"),
        (["--numbers", "1", "x"], "--numbers takes a list of numbers, not '1 x'"),
        (["--extras", '{"a"'], "it is not JSON"),
        (["--seed", "1", "stray"], "--seed takes one value; what is 'stray'?"),
        (["stray"], "unexpected argument 'stray'"),
        (["-x", "1"], "unexpected argument '-x'"),
        (["--members", "a"], "--members holds lists of settings and is given in the YAML file, as `members:`"),
    ],
)
def test_mistakes_on_the_command_line(toy, words, message):
    argv = [*words, *MODEL] if words == ["stray"] else [*MODEL, *words]
    with pytest.raises(ConfigError) as caught:
        check_arguments(toy, argv)
    assert message in str(caught.value)
    assert "trl toy --help" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 3", ":2: unknown key learning_rat; did you mean learning_rate?"),
        ("\n\nlearning_rate: abc", ":4: learning_rate takes a number, not 'abc'"),
        ("max_length: [1]", ":2: max_length takes a whole number, not [1]"),
        ("max_length: 1.5", ":2: max_length takes a whole number, not 1.5"),
        ("max_length: true", ":2: max_length takes a whole number, not True"),
        ("packing: 1", ":2: packing takes true or false, not 1"),
        ("packing: null", ":2: packing takes true or false, not None"),
        ("mode: quick", ":2: mode takes one of fast, slow, not 'quick'"),
        ("numbers: [1, x]", ":2: numbers takes a list of numbers, not [1, 'x']"),
        ("names: a", ":2: names takes a list, not 'a'"),
        ("run_name: {a: 1}", ":2: run_name takes text, not {'a': 1}"),
        ("nproc_per_node: {a: 1}", "nproc_per_node takes a single value"),
        ("max_restarts: many", "max_restarts takes a whole number"),
        ("members: [a]", "members[0] is a mapping with the keys path, fraction, not 'a'"),
        ("members: [{path: a, fractoin: 1}]", "members[0]: unknown key fractoin; did you mean fraction?"),
        ("members: [{fraction: 1}]", "members[0]: path is missing"),
    ],
)
def test_mistakes_in_the_file(toy, tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        check_arguments(toy, ["--config", path])
    assert message in str(caught.value)
    assert path in str(caught.value)


def test_all_mistakes_in_one_message(toy, tmp_path):
    path = write(tmp_path, "learning_rat: 3\nmax_length: x\n")
    with pytest.raises(ConfigError) as caught:
        check_arguments(toy, ["--config", path, "--packin", "--max_steps", "x"])
    assert len(caught.value.what.splitlines()) == 4


def test_something_required_is_missing(toy):
    with pytest.raises(ConfigError, match="trl toy needs --model_name_or_path") as caught:
        check_arguments(toy, ["--packing"])
    assert "trl toy --model_name_or_path MODEL" in caught.value.fix


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_name_or_path": "./nope"}, "no file or folder ./nope"),
        ({"dataset_name": "nope.jsonl"}, "no file or folder nope.jsonl"),
        ({"dataset_name": "/a/b/c"}, "no file or folder /a/b/c"),
        ({"output_dir": __file__}, "which is no folder"),
        ({"output_dir": ""}, "which is no folder"),
        ({"dataset_streaming": True}, "needs --max_steps"),
    ],
)
def test_paths_are_looked_up_before_anything_is_started(values, said):
    from trl.cli.check import check_early

    with pytest.raises(ConfigError, match=said):
        check_early(values)


def test_hub_names_are_not_taken_for_paths(tmp_path):
    from trl.cli.check import check_early

    check_early({"model_name_or_path": "owner/name", "dataset_name": "name", "output_dir": str(tmp_path / "new")})


def test_the_batch_is_solved_before_anything_is_started():
    from trl.cli.check import check_batch
    from trl.errors import BatchError

    numbers = {"global_batch_size": 7, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    with pytest.raises(BatchError, match="= 8"):
        check_batch(numbers, 2)
    check_batch(numbers, None)  # over several machines, whose number of processes is not known here
    with pytest.raises(BatchError, match="is 0"):
        check_batch({"global_batch_size": 0}, None)


@pytest.mark.parametrize("argument", ["--lr_scheduler_type", "--eval_strategy", "--optim", "--packing_strategy"])
def test_choices_of_enumerations_are_known_without_an_import(argument):
    from trl.cli.commands import COMMANDS

    with pytest.raises(ConfigError, match=f"{argument} takes one of"):
        check_arguments(COMMANDS["sft"], [argument, "foo"])
