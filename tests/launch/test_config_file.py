"""The YAML file: numbers as people write them, lines for messages, an environment."""

import pytest

from trl.errors import ConfigError
from trl.launch.config_file import read_config


def write(tmp_path, text):
    path = tmp_path / "sft.yaml"
    path.write_text(text)
    return str(path)


def test_values_lines_and_environment(tmp_path):
    path = write(
        tmp_path,
        "# a comment\nlearning-rate: 2e-5\nlr_scheduler_kwargs: {min_lr: 1E-7, name: 1e5x}\nmax_length: null\n"
        "env:\n  WANDB_MODE: offline\n  DEBUG: 1\ndatasets:\n  - path: a.json\n",
    )
    config = read_config(path)
    assert config.values == {
        "learning_rate": 2e-5,
        "lr_scheduler_kwargs": {"min_lr": 1e-7, "name": "1e5x"},
        "max_length": None,
        "datasets": [{"path": "a.json"}],
    }
    assert config.environment == {"WANDB_MODE": "offline", "DEBUG": "1"}
    assert config.where("learning_rate") == f"{path}:2"
    assert config.where("datasets") == f"{path}:8"
    assert config.texts["learning_rate"] == "2e-5"


def test_an_empty_file_is_no_error(tmp_path):
    assert read_config(write(tmp_path, "# nothing yet\n")).values == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", r"sft.yaml:\d: not valid YAML"),
        ("a: 1\n\tb: 2\n", r"sft.yaml:2: not valid YAML"),
        ("- a\n- b\n", r"sft.yaml:1: expected `key: value`"),
        ("a: 1\nb: 2\na: 3\n", r"sft.yaml:3: a is given twice; the first is in line 1"),
        ("max-steps: 1\nmax_steps: 3\n", r"sft.yaml:2: max_steps is given twice"),
        ("a: 1\nenv: [A, B]\n", r"sft.yaml:2: env holds environment variables"),
        ("a: !!python/object:os.system 1\n", r"sft.yaml:1: not valid YAML"),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_config(write(tmp_path, text))


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)missing\.yaml.*No such file"):
        read_config(str(tmp_path / "missing.yaml"))


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(str(path))
