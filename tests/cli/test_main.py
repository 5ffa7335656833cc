"""The command as a user meets it: exit codes, no traceback, nothing started after a mistake."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from trl.cli.main import main


def trl(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "trl.cli.main", *words], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_overview(words, capsys):
    assert main(words) == 0
    assert "usage: trl COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word, capsys):
    assert main([word]) == 0
    assert capsys.readouterr().out == f"trl {version('trl-distributed')}\n"


def test_an_unknown_command(capsys):
    assert main(["stf"]) == 2
    assert "did you mean `trl sft`?" in capsys.readouterr().err


def test_the_overview_needs_nothing():
    code = "import sys; from trl.cli.main import main; main(['--help']); print(len(sys.modules), *sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not {"torch", "yaml", "transformers", "argparse"} & set(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rat", "3"], "did you mean --learning_rate?"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--dataset_name", "d.jsonl"], "needs --model_name_or_path"),
        (["--model_name_or_path", "m"], "needs --dataset_name or `datasets:` in the YAML file"),
        (["--model_name_or_path", "m", "--dataset_name", "d", "--nproc_per_node", "many"], "'many'"),
    ],
)
def test_mistakes_end_in_a_sentence(words, message):
    result = trl("sft", "--nproc_per_node", "2", *words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("trl: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "torchrun" not in result.stderr  # nothing was started


def test_help_into_a_closed_pipe():
    result = subprocess.run(
        f"{sys.executable} -m trl.cli.main sft --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.startswith("usage: trl sft")
    assert result.stderr == ""


def test_a_plan_is_carried_out(monkeypatch, tmp_path):
    """From arguments to what is started: flags to torchrun, the rest to the worker, variables set before counting."""
    plans = []
    monkeypatch.setattr("trl.launch.start.start", lambda plan: plans.append(plan) or 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = tmp_path / "sft.yaml"
    config.write_text("model_name_or_path: m\nnproc_per_node: 3\nlearning_rate: 1e-4\nenv: {OMP_NUM_THREADS: 7}\n")
    assert main(["sft", "--config", str(config), "--dataset-name=d", "--nproc-per-node", "2", "--packing"]) == 0
    (plan,) = plans
    assert plan.kind == "agent"
    assert plan.processes == 2
    assert plan.environment == {"OMP_NUM_THREADS": "7"}
    assert plan.worker == (
        "trl.cli.worker",
        "sft",
        "--config",
        str(config),
        "--dataset_name",
        "d",
        "--packing",
        "true",
    )


def test_use_cpu_means_one_process(monkeypatch):
    plans = []
    monkeypatch.setattr("trl.launch.start.start", lambda plan: plans.append(plan) or 0)
    monkeypatch.setattr("trl.launch.devices.count_accelerators", lambda env: 8)
    words = ["sft", "--model_name_or_path", "m", "--dataset_name", "d"]
    main(words)
    main([*words, "--use_cpu"])
    assert [plan.processes for plan in plans] == [8, 1]
