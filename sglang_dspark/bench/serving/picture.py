"""Throughput against latency, one curve a server, a point a concurrency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_dspark.bench.rows import Row
from sglang_dspark.bench.style import GREY, SERIES, finish, load_pyplot, save, title_of

from .run import DSPARK, PLAIN

PANELS = (
    ("tpot_p50_ms", "time per output token after the first, p50 (ms)"),
    ("e2e_p50_ms", "time to the whole answer, p50 (ms)"),
)


def draw(rows: list[Row], path: Path) -> None:
    """Write the picture of one run's rows.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(11, 4.8), layout="constrained", sharey=True)
    subjects = list(dict.fromkeys(row.subject for row in rows))
    for axis, (figure_name, label) in zip(axes, PANELS, strict=True):
        for number, subject in enumerate(subjects):
            _curve(axis, [row for row in rows if row.subject == subject], figure_name, number)
        axis.set_xlabel(label)
        axis.margins(x=0.08, y=0.06)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("output tokens per second, all requests together")
    axes[0].annotate("better", (0.06, 0.94), (0.2, 0.82), **_ARROW)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(subjects), frameon=False)
    asked = rows[0].case
    lengths = f"prompts of {asked['input_tokens']} tokens, " if "input_tokens" in asked else ""
    lengths += f"answers of {asked['output_tokens']}"
    finish(figure, title_of(rows[0]), f"{asked['data']}, {lengths}; numbers at the points: requests at once", rows[0])
    save(figure, path)


_ARROW: dict[str, Any] = {
    "xycoords": "axes fraction",
    "textcoords": "axes fraction",
    "color": GREY,
    "arrowprops": {"arrowstyle": "->", "color": GREY},
}


def _curve(axis: Any, rows: list[Row], figure_name: str, number: int) -> None:
    rows = sorted(rows, key=lambda row: int(row.case["concurrency"]))
    across, up = ([row.figures[name] for row in rows] for name in (figure_name, "output_tokens_per_s"))
    subject = rows[0].subject
    colour = {PLAIN: GREY, DSPARK: SERIES[0]}.get(subject, SERIES[number % len(SERIES)])
    forced = bool(rows[0].how["wrong_text"])
    label = f"{subject} (text is wrong)" if forced else subject
    axis.plot(across, up, "--o" if forced else "-o", color=colour, label=label, markersize=5)
    for x, y, row in zip(across, up, rows, strict=True):
        place = {"textcoords": "offset points", "xytext": (7, -3), "fontsize": 8, "color": colour}
        axis.annotate(str(row.case["concurrency"]), (x, y), **place)
