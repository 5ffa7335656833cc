"""Torchrun flags are found wherever and however they are written, and the command line wins."""

import argparse

import pytest

from trl.errors import ConfigError
from trl.launch.config_file import find_config, read_config
from trl.launch.flags import LAUNCH_FLAGS, from_environment, is_option, split_argv, split_mapping, to_argv

VALUES = {"int": "3", "number": "0.5", "text": "x:1"}
WITH_VALUE = [flag for flag in LAUNCH_FLAGS.values() if flag.type != "switch"]


def sample(flag) -> str:
    return flag.choices[0] if flag.choices else VALUES[flag.type]


def torch_options() -> dict[str, argparse.Action]:
    from torch.distributed.run import get_args_parser

    return {action.dest: action for action in get_args_parser()._actions if action.option_strings}


def test_the_table_is_that_of_the_installed_torch():
    options = torch_options()
    assert set(LAUNCH_FLAGS) | {"module", "no_python", "run_path", "help"} == set(options)
    for name, flag in LAUNCH_FLAGS.items():
        action = options[name]
        assert (action.nargs == 0) == (flag.type == "switch"), name
        assert {int: "int", float: "number"}.get(action.type, flag.type) == flag.type, name
        assert tuple(action.choices or ()) == flag.choices, name
        shorts = [spelling for spelling in action.option_strings if not spelling.startswith("--")]
        assert shorts == ([f"-{flag.short}"] if flag.short else []), name


def test_variables_are_read_where_torch_reads_them(monkeypatch):
    for flag in LAUNCH_FLAGS.values():
        monkeypatch.setenv(f"PET_{flag.name.upper()}", "1" if flag.type != "text" else sample(flag))
    ours = from_environment(dict(__import__("os").environ))
    theirs = {
        name for name, action in torch_options().items() if str(action.default) in ("1", "1.0", "True", "x:1", "spawn")
    }
    assert set(ours) == {name for name in theirs if name in LAUNCH_FLAGS}


@pytest.mark.parametrize("flag", WITH_VALUE, ids=lambda flag: flag.name)
@pytest.mark.parametrize("dash", ["-", "_"])
@pytest.mark.parametrize("equals", [True, False])
@pytest.mark.parametrize("source", ["yaml", "cli", "both"])
def test_every_spelling_from_every_source(flag, dash, equals, source, tmp_path):
    name, value = flag.name.replace("_", dash), sample(flag)
    in_file = "9" if source == "both" and not flag.choices else value
    argv = ["--learning_rate", "1"]
    file_flags: dict[str, str] = {}
    if source in ("yaml", "both"):
        path = tmp_path / "c.yaml"
        path.write_text(f"{name}: {in_file}\nlearning_rate: 2\n")
        config = read_config(str(path))
        file_flags, rest = split_mapping(config.values, config.texts)
        assert rest == {"learning_rate": 2}
    if source in ("cli", "both"):
        argv = argv[:1] + argv[1:] + ([f"--{name}={value}"] if equals else [f"--{name}", value])
    cli_flags, rest_argv = split_argv(argv)
    assert rest_argv == ["--learning_rate", "1"]
    merged = {**file_flags, **cli_flags}
    assert merged == {flag.name: value}
    assert to_argv(merged) == [f"--{flag.name}", value]


@pytest.mark.parametrize("name", ["standalone", "virtual-local-rank", "virtual_local_rank"])
def test_switches(name, tmp_path):
    canonical = name.replace("-", "_")
    assert split_argv([f"--{name}", "--max_steps", "-1"]) == ({canonical: "true"}, ["--max_steps", "-1"])
    assert split_mapping({name: True}, {}) == ({canonical: "true"}, {})
    assert split_mapping({name: False}, {}) == ({}, {})
    assert to_argv({canonical: "true"}) == [f"--{canonical}"]
    with pytest.raises(ConfigError, match="takes no value"):
        split_argv([f"--{name}=true"])
    with pytest.raises(ConfigError, match="true or false"):
        split_mapping({name: "maybe"}, {})


def test_short_spellings():
    assert split_argv(["-r", "3", "-t=1", "--seed", "1"]) == ({"redirects": "3", "tee": "1"}, ["--seed", "1"])


def test_yaml_does_not_turn_a_range_of_nodes_into_a_number(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("nnodes: 1:2\n")
    config = read_config(str(path))
    assert config.values["nnodes"] == 62  # what YAML 1.1 makes of it
    assert split_mapping(config.values, config.texts)[0] == {"nnodes": "1:2"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nproc_per_node"], "--nproc_per_node needs a value"),
        (["--nproc-per-node", "--seed", "1"], "--nproc-per-node needs a value"),
        (["--max_restarts", "few"], "--max_restarts takes a whole number, not 'few'"),
        (["--monitor_interval=x"], "--monitor_interval takes a number"),
        (["--start_method", "magic"], "one of spawn, fork, forkserver"),
        (["--module"], "no meaning here"),
        (["-m"], "no meaning here"),
        (["--no-python"], "no meaning here"),
    ],
)
def test_bad_flags(argv, message):
    with pytest.raises(ConfigError, match=message):
        split_argv(argv)


def test_no_abbreviations():
    assert split_argv(["--nproc", "2"]) == ({}, ["--nproc", "2"])


@pytest.mark.parametrize(
    ("token", "expected"), [("--a", True), ("-a", True), ("-1", False), ("-.5", False), ("-", False)]
)
def test_is_option(token, expected):
    assert is_option(token) is expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--config", "a.yaml", "--seed", "1"], ("a.yaml", ["--seed", "1"])),
        (["--seed", "1", "--config=b.yaml"], ("b.yaml", ["--seed", "1"])),
        (["--seed", "1"], (None, ["--seed", "1"])),
    ],
)
def test_find_config(argv, expected):
    assert find_config(argv) == expected


def test_config_without_file():
    with pytest.raises(ConfigError, match="--config needs"):
        find_config(["--config"])
