"""Kernel rows as pictures: times by tokens against the copy and the floors, and executed instructions by chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang_dspark.bench import rows as row_files
from sglang_dspark.bench.rows import Row
from sglang_dspark.bench.style import GREY, SERIES, finish, load_pyplot

from .report import BASELINE, DEVICE, NOT_OURS

# Of what is not ours: the same in every picture.
FIXED_STYLES: dict[str, dict[str, Any]] = {
    BASELINE: {"color": GREY, "marker": "s"},
    "sglang_1_warp": {"color": GREY, "marker": "s", "linestyle": "--", "markerfacecolor": "white"},
    "device_copy": {"color": "black", "linestyle": "-", "linewidth": 1.0, "label": "a copy as big"},
    "unfused": {"color": "#BBBBBB", "marker": "v"},
}
KINDS = (
    ("vector", "row_vector_count", SERIES[0]),
    ("scalar", "row_scalar_count", SERIES[4]),
    ("memory", "row_memory_count", SERIES[1]),
    ("waits, no-ops", "row_waits_count", "#BBBBBB"),
)
COLUMNS = 3


def pictures(rows: list[Row]) -> Iterator[tuple[str, Any]]:
    """Every picture of one run: its name, and the figure to be saved.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    ops = list(dict.fromkeys(row.benchmark for row in rows if row.benchmark != DEVICE))
    copy = next((row for row in rows if row.benchmark == DEVICE and row.subject == "device_copy"), None)
    for op in ops:
        own = [row for row in rows if row.benchmark == op]
        conditions: dict[tuple[str, str, str], list[Row]] = {}
        for row in (row for row in own if row.measured):
            key = (str(row.case.get("pool_dtype", "")), str(row.how.get("mode", "")), str(row.how.get("cache", "")))
            conditions.setdefault(key, []).append(row)
        for key, of_condition in conditions.items():
            yield "-".join((op, *key)), _times(of_condition, copy)
        if floors := [row for row in own if not row.measured and row.how["basis"] == row_files.STATED]:
            yield f"{op}-floors", _floors(floors)
        if emulated := [row for row in own if not row.measured and row.how["basis"] == row_files.EMULATED]:
            yield f"{op}-instructions", _instructions(emulated)


def _times(rows: list[Row], copy: Row | None) -> Any:
    presets = list(dict.fromkeys(row.preset for row in rows))
    figure, axes = _panels(len(presets))
    subjects = list(dict.fromkeys(row.subject for row in rows))
    ours = [subject for subject in subjects if subject not in NOT_OURS and subject not in FIXED_STYLES]
    for axis, preset in zip(axes, presets, strict=False):
        of_preset = [row for row in rows if row.preset == preset]
        for subject in subjects:
            own = sorted((row for row in of_preset if row.subject == subject), key=lambda row: int(row.case["tokens"]))
            style = FIXED_STYLES.get(subject) or {"color": SERIES[ours.index(subject) % len(SERIES)], "marker": "o"}
            _time_curve(axis, own, {"label": subject, "markersize": 4, **style})
        _floor_lines(axis, of_preset, copy)
        _log_axes(axis, preset, [int(row.case["tokens"]) for row in of_preset])
    # The floors of few tokens lie far below what any kernel takes: they would squeeze the rest.
    axes[0].set_ylim(bottom=min(row.figures["p20_us"] for row in rows) / 4)
    _shared_labels(figure, axes, len(presets), "p50 (us), the band p20 to p80")
    first = rows[0]
    conditions = ", ".join(
        f"{name} {value}"
        for name, value in (
            ("pool", first.case.get("pool_dtype")),
            ("mode", first.how.get("mode")),
            ("cache", first.how.get("cache")),
        )
        if value
    )
    finish(figure, f"{first.run.device['name']}, MiniMax-M3: {first.benchmark}", conditions, first)
    return figure


def _time_curve(axis: Any, rows: Sequence[Row], style: dict[str, Any]) -> None:
    if not rows:
        return
    tokens = [int(row.case["tokens"]) for row in rows]
    low, middle, high = ([row.figures[f"p{part}_us"] for row in rows] for part in (20, 50, 80))
    axis.plot(tokens, middle, **style)
    axis.fill_between(tokens, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _floor_lines(axis: Any, rows: list[Row], copy: Row | None) -> None:
    """What the bytes alone would take: at the bandwidth of the large copy, and at the stated peak."""
    bytes_by_tokens = {int(row.case["tokens"]): row.figures["moved_bytes"] for row in rows}
    tokens = sorted(bytes_by_tokens)
    if copy is not None:
        rate = copy.figures["bandwidth_gb_per_s"]
        values = [bytes_by_tokens[count] / rate / 1e3 for count in tokens]
        label = f"its bytes at the measured copy bandwidth ({rate:.0f} GB/s)"
        axis.plot(tokens, values, color="black", linestyle="--", linewidth=1, label=label)
    stated = {
        int(row.case["tokens"]): row.figures["stated_peak_share"] * row.figures["p50_us"]
        for row in rows
        if "stated_peak_share" in row.figures
    }
    if stated:
        values = [stated[count] for count in sorted(stated)]
        axis.plot(sorted(stated), values, color="black", linestyle=":", linewidth=1, label="at the stated peak")


def _floors(rows: list[Row]) -> Any:
    """Lines by chip, panels by preset. Of bf16 pools: fp8's lie close by, and the table has them."""
    rows = [row for row in rows if row.case.get("pool_dtype", "bf16") == "bf16"] or rows
    presets = list(dict.fromkeys(row.preset for row in rows))
    figure, axes = _panels(len(presets))
    subjects = list(dict.fromkeys(row.subject for row in rows))
    for axis, preset in zip(axes, presets, strict=False):
        of_preset = [row for row in rows if row.preset == preset]
        for number, subject in enumerate(subjects):
            own = sorted((row for row in of_preset if row.subject == subject), key=lambda row: int(row.case["tokens"]))
            tokens, floors = [int(row.case["tokens"]) for row in own], [row.figures["floor_us"] for row in own]
            axis.plot(tokens, floors, color=SERIES[number % len(SERIES)], label=subject)
        _log_axes(axis, preset, [int(row.case["tokens"]) for row in of_preset])
    _shared_labels(figure, axes, len(presets), "floor time (us)")
    first = rows[0]
    subtitle = f"bytes that must move, at stated peak bandwidth; pool {first.case.get('pool_dtype', 'bf16')}"
    finish(figure, f"{first.benchmark}, MiniMax-M3: floor times", subtitle, first)
    return figure


def _instructions(rows: list[Row]) -> Any:
    """Executed instructions a row, by kind."""
    pyplot = load_pyplot()
    names = [f"{row.subject}, {row.preset}\n{row.case['pool_dtype']} pool" for row in rows]
    figure, axis = pyplot.subplots(figsize=(9, 1.4 + 0.55 * len(rows)), layout="constrained")
    starts = [0.0] * len(rows)
    for kind, key, colour in KINDS:
        widths = [row.figures.get(key, 0.0) for row in rows]
        axis.barh(names, widths, left=starts, color=colour, label=kind, height=0.65)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for name, end in zip(names, starts, strict=True):
        axis.annotate(f" {end:.1f}", (end, name), va="center", fontsize=9)
    axis.set_xlim(0, max(starts) * 1.1)
    axis.invert_yaxis()
    axis.set_xlabel("executed instructions for a row (one head's K, V or Q of one token)")
    figure.legend(*axis.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    first = rows[0]
    finish(figure, f"{first.benchmark}: instructions", "counted by an interpreter of the compiled code", first)
    return figure


def _panels(count: int) -> tuple[Any, list[Any]]:
    pyplot = load_pyplot()
    columns = min(count, COLUMNS)
    lines = -(-count // columns)
    size = (max(4.2 * columns, 7.5), 3.4 * lines + 1.4)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, layout="constrained", sharey=True, squeeze=False)
    return figure, list(axes.flat)


def _log_axes(axis: Any, preset: str, tokens: Sequence[int]) -> None:
    axis.set_title(preset, fontsize=10, loc="left")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = sorted(set(tokens))
    axis.set_xticks(ticks[:: max(1, -(-len(ticks) // 6))])
    axis.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.minorticks_off()


def _shared_labels(figure: Any, axes: list[Any], used: int, label: str) -> None:
    for axis in axes[used:]:
        axis.remove()
    for axis in axes[:used]:
        axis.set_xlabel("tokens")
    for axis in axes[:used:COLUMNS]:
        axis.set_ylabel(label)
    handles = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    columns = min(len(handles), 3)
    figure.legend(
        handles.values(), handles.keys(), frameon=False, fontsize=8, loc="outside lower center", ncols=columns
    )
