"""What the model says, as a picture: the break-even length by batch, and where a round's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_dspark.bench.rows import Row
from sglang_dspark.bench.style import GREY, SERIES, finish, load_pyplot, save

from .as_rows import TOTAL
from .draft_stages import BLOCK, CONTEXT, OURS, PROPOSE, ROUND, SGLANG
from .model import PATHS, PLAIN

# Of the bars, bottom up: what a stage counts as.
GROUPS = (
    ("routed experts", SERIES[0]),
    ("rest of the target", SERIES[4]),
    ("its all-reduces", "#BBBBBB"),
    ("draft block", SERIES[2]),
    ("proposals", SERIES[3]),
    ("context K/V", SERIES[1]),
    ("bookkeeping", SERIES[5]),
)
PART_GROUPS = {BLOCK: "draft block", PROPOSE: "proposals", CONTEXT: "context K/V", ROUND: "bookkeeping"}


def draw(rows: list[Row], path: Path) -> None:
    """Write the picture of one question, asked for one batch or several.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11.5, 5), layout="constrained", width_ratios=(1, 1.1))
    _break_even(left, rows)
    batches = sorted({int(row.case["batch"]) for row in rows})
    _bars(right, rows, batches[0])
    case, how = rows[0].case, rows[0].how
    subtitle = (
        f"context {case['context']}, gamma {case['gamma']}, weights {case['weights']}, KV {case['kv']}, draft's KV "
        f"{case['draft_kv']}"
    )
    finish(figure, f"{how['device']}, {rows[0].preset}", subtitle, rows[0])
    save(figure, path)


def _break_even(axis: Any, rows: list[Row]) -> None:
    totals = [row for row in rows if row.case["stage"] == TOTAL]
    for subject, style in ((SGLANG, {"color": GREY, "linewidth": 4, "alpha": 0.5}), (OURS, {"color": SERIES[0]})):
        own = sorted((row for row in totals if row.subject == subject), key=lambda row: int(row.case["batch"]))
        label = "SGLang's own path" if subject == SGLANG else "with our ops"
        values = [row.figures["break_even_tokens"] for row in own]
        axis.plot([int(row.case["batch"]) for row in own], values, marker="o", markersize=4, label=label, **style)
    most, asked = int(rows[0].case["gamma"]) + 1, float(rows[0].case["accepted_length"])
    axis.axhline(asked, color=SERIES[2], linestyle="--", label=f"accepted length {asked:g}: wins where it is above")
    axis.axhline(most, color=GREY, linestyle=":", label=f"the most a round yields: {most}")
    axis.set_xscale("log", base=2)
    ticks = sorted({int(row.case["batch"]) for row in rows})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_ylim(0, most * 1.06)
    axis.set_xlabel("requests in the batch")
    axis.set_ylabel("tokens a round must yield to win")
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.02, 0.93))


def _bars(axis: Any, rows: list[Row], batch: int) -> None:
    stages = [row for row in rows if row.case["batch"] == batch and row.case["stage"] != TOTAL]
    names = {PLAIN: "a step without\nspeculation", SGLANG: "a round,\nSGLang's path", OURS: "a round,\nour ops"}
    starts = dict.fromkeys(PATHS, 0.0)
    for group, colour in GROUPS:
        widths = [
            sum(row.figures["time_us"] for row in stages if row.subject == path and _group(row) == group) / 1e3
            for path in PATHS
        ]
        axis.barh(
            [names[path] for path in PATHS], widths, left=list(starts.values()), color=colour, label=group, height=0.6
        )
        starts = {path: start + width for (path, start), width in zip(starts.items(), widths, strict=True)}
    for path, end in starts.items():
        axis.annotate(f" {end:.2f} ms", (end, names[path]), va="center", fontsize=9)
    axis.set_xlim(0, max(starts.values()) * 1.16)
    axis.invert_yaxis()
    axis.set_xlabel(f"ms at batch {batch}")
    axis.legend(frameon=False, fontsize=8, loc="upper center", ncols=4, bbox_to_anchor=(0.5, -0.12))


def _group(row: Row) -> str:
    part, stage = str(row.case["part"]), str(row.case["stage"])
    if part in PART_GROUPS:
        return PART_GROUPS[part]
    return {"routed experts": "routed experts", "all-reduce": "its all-reduces"}.get(stage, "rest of the target")
