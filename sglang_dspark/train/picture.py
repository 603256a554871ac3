"""A picture of a run: the loss over the steps, and the acceptance of each position of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Steps averaged into one point of a curve.
_POINTS = 120


def draw_run(metrics: Sequence[Mapping[str, float]], path: Path) -> None:
    """Write the picture of a draft's metrics.

    Raises:
        RuntimeError: matplotlib is not installed, or there is nothing to draw.
    """
    if not metrics:
        raise RuntimeError("asked for a picture of a run, found no metrics: train at least one step")
    pyplot = load_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name in ("loss", "cross_entropy", "distance", "confidence"):
        if name in metrics[0]:
            left.plot(*_curve(metrics, name), label=name.replace("_", " "))
    left.set_xlabel("step")
    left.set_title("loss and its terms")
    left.legend()
    positions = sorted(int(name.removeprefix("acceptance_")) for name in metrics[-1] if name.startswith("acceptance_"))
    colours = pyplot.get_cmap("viridis")
    for position in positions:
        colour = colours(position / (len(positions) + 1))
        right.plot(*_curve(metrics, f"acceptance_{position}"), label=f"position {position}", color=colour)
    right.set_xlabel("step")
    right.set_ylim(0, 1)
    right.set_title("acceptance by position, the ones before accepted or not")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def load_pyplot() -> Any:
    """matplotlib's pyplot, drawing into files.

    Raises:
        RuntimeError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise RuntimeError(
            "asked for a picture, found no matplotlib: pip install 'sglang-dspark[plot]'; the metrics are complete "
            "without it"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _curve(metrics: Sequence[Mapping[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Steps and values, averaged so that a curve has at most so many points."""
    width = max(1, len(metrics) // _POINTS)
    chunks = [metrics[first : first + width] for first in range(0, len(metrics), width)]
    chunks = [[row for row in chunk if name in row] for chunk in chunks]
    steps = [chunk[-1]["step"] + 1 for chunk in chunks if chunk]
    return steps, [sum(row[name] for row in chunk) / len(chunk) for chunk in chunks if chunk]
