"""Pictures of an evaluation, from its JSON alone; they need matplotlib, the `plot` extra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_dspark.train.picture import load_pyplot

# A bin of fewer rounds is drawn by chance more than by the head; the errors count it all the same.
FEWEST_ROUNDS = 10
# Positions that a reliability diagram has room for.
MOST_PANELS = 8


def draw_acceptance(table: Mapping[str, Any], path: Path) -> None:
    """Accepted length by data set, with what was published, and acceptance and survival by position.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    sets, gamma = table["sets"], table["proposals"]
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    names = [one["name"] for one in sets]
    left.barh(names, [one["accepted_length"] or 0 for one in sets], color=[f"C{i % 10}" for i in range(len(sets))])
    published = [(one["published_accepted_length"], one["name"]) for one in sets if one["published_accepted_length"]]
    if published:
        left.scatter(*zip(*published, strict=True), marker="D", color="black", zorder=3, label="published")
        left.legend(fontsize="small")
    left.axvline(1, color="0.5", linewidth=0.8)
    left.set_xlim(0, gamma + 1)
    left.invert_yaxis()
    left.set_title("accepted length (1 is no gain)")
    for axis, key, title in (
        (middle, "acceptance", "kept, where all before it were"),
        (right, "survival", "share of rounds that keep at least so many"),
    ):
        for index, one in enumerate(sets):
            points = [(place, value) for place, value in enumerate(one[key], start=1) if value is not None]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", color=f"C{index % 10}", label=one["name"])
        axis.set_title(title)
        axis.set_xlabel("position in the block")
        axis.set_xticks(range(1, gamma + 1))
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    _save(pyplot, figure, path)


def draw_calibration(table: Mapping[str, Any], path: Path) -> None:
    """A reliability diagram for each position, before the temperatures and with them.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    positions = table["positions"]
    chosen = positions[:MOST_PANELS]
    columns = min(4, len(chosen))
    lines = -(-len(chosen) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.2 * columns, 3.2 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(chosen) :]:
        axis.axis("off")
    for index, (axis, one) in enumerate(zip(axes.flat, chosen, strict=False), start=1):
        axis.plot([0, 1], [0, 1], "--", color="0.7", linewidth=1)
        for key, label in (("before", "as trained"), ("after", "with temperatures")):
            bins = one[f"reliability_{key}"]
            ece = f"{100 * one[f'ece_{key}']:.1f}%"
            shown = [one_bin for one_bin in bins if one_bin[2] >= FEWEST_ROUNDS] or bins
            predicted, observed, counts = zip(*shown, strict=True)
            sizes = [8 + 120 * count / sum(counts) for count in counts]
            (line,) = axis.plot(predicted, observed, linewidth=1.2, label=f"{label}: ECE {ece}")
            axis.scatter(predicted, observed, s=sizes, color=line.get_color())
        axis.set_title(f"position {index}")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
        axis.legend(fontsize="x-small")
    figure.supxlabel("predicted survival")
    figure.supylabel("observed survival")
    _save(pyplot, figure, path)


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
