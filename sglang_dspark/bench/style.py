"""One look for every picture of a benchmark: colours, grid, title, and the mark of what is no performance figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_dspark.train.picture import load_pyplot

from .rows import Row

__all__ = ["GREY", "SERIES", "finish", "load_pyplot", "save", "title_of"]

# Paul Tol's "bright" scheme: told apart by colour-blind eyes and on paper. Ours first, then the others.
SERIES = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377")
GREY = "#777777"
WARNING = "#BB3322"


def title_of(row: Row) -> str:
    """Device and model."""
    return f"{row.run.device['name']}, {row.preset}"


def mark_of(row: Row) -> str | None:
    """What the picture must say of itself, in red; None for a timing on a device."""
    if not row.measured:
        return f"{row.how['basis']}, not measured"
    return "CPU: not a performance figure" if row.run.device["platform"] == "cpu" else None


def finish(figure: Any, title: str, subtitle: str, row: Row) -> None:
    """Grid and frame of every axis, and the title over all of them."""
    for axis in figure.axes:
        # Bars need no lines along them.
        axis.grid(True, axis="x" if axis.patches else "both", color="#E5E5E5", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    mark = mark_of(row)
    figure.suptitle(f"{title}\n", fontsize=13, fontweight="bold", x=0.01, ha="left")
    # Below the title, however high the picture is.
    inch = 1 / figure.get_size_inches()[1]
    figure.text(0.01, 1 - 0.36 * inch, subtitle, fontsize=9, color=GREY, ha="left", va="top")
    if mark:
        figure.text(0.99, 1 - 0.08 * inch, mark, fontsize=11, fontweight="bold", color=WARNING, ha="right", va="top")


def save(figure: Any, path: Path) -> None:
    """Write the picture, and let matplotlib forget it."""
    figure.savefig(path, dpi=120)
    load_pyplot().close(figure)
