"""The loss of a run as a picture, from the log in its trainer_state.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Points = list[tuple[int, float]]


def losses(log: Sequence[Mapping[str, float]], key: str) -> Points:
    """(step, value) of every entry that has `key`: "loss" or "eval_loss"."""
    return [(int(entry["step"]), entry[key]) for entry in log if key in entry]


def draw(log: Sequence[Mapping[str, float]], picture: Path) -> None:
    """Write the training loss of each step and the held-out losses as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), dpi=120, layout="constrained")
    for key, label, style in (("loss", "training", "-"), ("eval_loss", "held-out", "o")):
        axes.plot(*zip(*losses(log, key), strict=True), style, label=label)
    axes.set(xlabel="optimizer step", ylabel="loss per supervised token (nats)", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture)
    pyplot.close(figure)
