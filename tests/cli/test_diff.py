"""`trl diff`: the step at which two runs part."""

import json

import pytest

from trl.cli.diff import main
from trl.errors import ConfigError


def run(folder, losses, arguments=None, ranks=1, rows=None):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"arguments": arguments or {}, "layout": {"data_ranks": ranks}}))
    lines = [
        {"step": i + 1, "loss": loss, "grad_norm": 1.0, "learning_rate": 0.1, "rows": (rows or "abcdef")[i]}
        for i, loss in enumerate(losses)
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_the_same_run_on_another_layout(tmp_path, capsys):
    a = run(tmp_path / "a", [3.0, 2.0], {"per_device_train_batch_size": 8, "seed": 1})
    b = run(tmp_path / "b", [3.0, 2.0 + 1e-7], {"per_device_train_batch_size": 4, "seed": 1}, ranks=2)
    assert main([a, b]) == 0
    out = capsys.readouterr().out
    assert "execution: per_device_train_batch_size: 8 | 4" in out
    assert "layout: data_ranks: 1 | 2" in out
    assert "the same run: 2 steps in common" in out


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"losses": [3.0, 2.1, 1.5]}, "part at step 2: loss 2.0 | 2.1"),
        ({"losses": [3.0, 2.0, 1.0], "rows": "axb"}, "part at step 2: rows b | x"),
        ({"losses": [3.0, 2.0]}, "part at step 3: only the first run has it"),
        ({"losses": [3.0, 2.0, 1.0, 0.5]}, "part after step 3: only the second run goes on"),
    ],
)
def test_the_first_step_that_differs(tmp_path, capsys, other, said):
    a, b = run(tmp_path / "a", [3.0, 2.0, 1.0]), run(tmp_path / "b", **other)
    assert main([a, b]) == 1
    assert said in capsys.readouterr().out


def test_the_tolerance_and_arguments(tmp_path, capsys):
    a, b = run(tmp_path / "a", [1.0], {"seed": 1}), run(tmp_path / "b", [1.01], {"seed": 2})
    assert main([a, b]) == 1
    assert main([a, "--tolerance", "0.1", b]) == 0
    assert "argument: seed: 1 | 2" in capsys.readouterr().out


def test_models_and_data_that_differ(tmp_path, capsys):
    folders = []
    for name, rank in (("a", 4), ("b", 8)):
        folders.append(run(tmp_path / name, [1.0]))
        file = tmp_path / name / "run.json"
        model = {"adapters": {"default": {"r": rank, "alpha": 16}}}
        file.write_text(json.dumps({**json.loads(file.read_text()), "model": model, "data": {"data": name}}))
    main(folders)
    out = capsys.readouterr().out
    assert "model: adapters.default.r: 4 | 8" in out
    assert "data: data: a | b" in out
    assert "alpha" not in out


def test_mistakes(tmp_path):
    a = run(tmp_path / "a", [1.0])
    with pytest.raises(ConfigError, match="two output folders"):
        main([a])
    with pytest.raises(ConfigError, match=r"there is no .*run\.json"):
        main([a, str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="takes a number"):
        main([a, a, "--tolerance=x"])
