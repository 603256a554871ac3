"""Markdown tables from rows alone: ``python -m sglang_dspark.bench.report [FILE ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from . import rows as row_files
from .environment import RESULTS
from .rows import Row, RowError
from .serving import report as serving_tables

BASELINE = "sglang"
NOT_OURS = ("device_copy", BASELINE, "sglang_1_warp")
MEASURED = "Microseconds on the device, p50 (p20 to p80); {how}. The shares are those of {first}."
STATED = "Floor times in microseconds at the peak bandwidth that the vendor states: stated, not measured."
# Benchmarks whose tables are not a time a case.
OWN_TABLES = {"serving": serving_tables.markdown}
# Of the case's facts, these are shown in every table's title, and the others where they vary.
TITLE_KEYS = ("pool_dtype",)


def markdown(rows: Iterable[Row]) -> str:
    """Every run's tables, in the order of the rows."""
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((row.run.device["name"], row.run.started), []).append(row)
    return "\n\n".join(part for of_run in runs.values() for part in _run(of_run))


def _run(rows: list[Row]) -> Iterator[str]:
    run, measured = rows[0].run, rows[0].measured
    device, versions = run.device, ", ".join(f"{name} {version}" for name, version in run.versions.items())
    what = f"Measured on {device['name']}" if measured else "Stated, not measured"
    yield f"## {what}, {run.started[:10]}"
    facts = f"`{run.command}` at commit {run.commit}; {versions}"
    yield f"{device['arch']}, driver {device['driver']}; {facts}" if measured else facts
    if of_device := [row for row in rows if row.benchmark == "device"]:
        yield "\n".join(f"- {_device_line(row)}" for row in of_device)
    tables: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.benchmark != "device" and row.benchmark not in OWN_TABLES:
            tables.setdefault(_title(row), []).append(row)
    for benchmark, parts in OWN_TABLES.items():
        if of_benchmark := [row for row in rows if row.benchmark == benchmark]:
            yield from parts(of_benchmark)
    for title, of_table in tables.items():
        yield f"### {', '.join(title)}"
        yield _timings(of_table) if measured else _floors(of_table)


def _title(row: Row) -> tuple[str, ...]:
    facts = [f"{key.replace('_', ' ')} {row.case[key]}" for key in TITLE_KEYS if key in row.case]
    conditions = [f"{key} {row.how[key]}" for key in ("mode", "cache") if key in row.how]
    return row.benchmark, *facts, *conditions


def _timings(rows: list[Row]) -> str:
    subjects = list(dict.fromkeys(row.subject for row in rows))
    # Ours first, in the platform's order.
    subjects.sort(key=lambda name: NOT_OURS.index(name) + 1 if name in NOT_OURS else 0)
    first = subjects[0]
    keys, lines = _lines(rows)
    body = []
    for facts, of_line in lines.items():
        cells = [_spread(of_line[name]) if name in of_line else "" for name in subjects]
        body.append([*facts, _bytes(next(iter(of_line.values()))), *cells, *_shares(of_line, first)])
    head = [
        *keys,
        "MB moved",
        *subjects,
        "of copy bandwidth",
        "of a copy as big",
        "of stated peak",
        f"{BASELINE} / {first}",
    ]
    counts = sorted({int(row.how["repetitions"]) for row in rows if "repetitions" in row.how})
    spread = " to ".join(str(count) for count in sorted({counts[0], counts[-1]})) if counts else "unknown"
    how = f"repetitions a case: {spread}"
    if trimmed := sum(bool(row.how.get("trimmed")) for row in rows):
        how += f", trimmed by the time budget in {trimmed} of {len(rows)} cases"
    return f"{MEASURED.format(how=how, first=first)}\n\n{table(head, body)}"


def _floors(rows: list[Row]) -> str:
    subjects = list(dict.fromkeys(row.subject for row in rows))
    keys, lines = _lines(rows)
    body = []
    for facts, of_line in lines.items():
        floors = [f"{of_line[name].figures['floor_us']:.3g}" if name in of_line else "" for name in subjects]
        body.append([*facts, _bytes(next(iter(of_line.values()))), *floors])
    return f"{STATED}\n\n{table([*keys, 'MB moved', *subjects], body)}"


def _lines(rows: list[Row]) -> tuple[list[str], dict[tuple[str, ...], dict[str, Row]]]:
    """The case's facts that vary, and the rows of each combination by subject (the last one wins)."""
    keys = [key for key in rows[0].case if len({row.case.get(key) for row in rows}) > 1]
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.preset, *(str(row.case.get(key, "")) for key in keys)), {})[row.subject] = row
    return ["preset", *keys], lines


def _shares(of_line: dict[str, Row], first: str) -> list[str]:
    figures = of_line[first].figures if first in of_line else {}
    names = ("copy_bandwidth_share", "same_copy_share", "stated_peak_share")
    shares = [f"{figures[name]:.0%}" if name in figures else "" for name in names]
    if not figures or BASELINE not in of_line:
        return [*shares, ""]
    return [*shares, f"{of_line[BASELINE].figures['p50_us'] / figures['p50_us']:.2f}"]


def _spread(row: Row) -> str:
    figures = row.figures
    return f"{figures['p50_us']:.1f} ({figures['p20_us']:.1f} to {figures['p80_us']:.1f})"


def _bytes(row: Row) -> str:
    return f"{row.figures['moved_bytes'] / 1e6:.3g}"


def _device_line(row: Row) -> str:
    if row.subject == "event_pair":
        return f"Two time stamps with nothing between them: {_spread(row)} us, contained in every time below."
    rate = f"{row.figures['bandwidth_gb_per_s']:.0f} GB/s"
    return f"A copy that moves {_bytes(row)} MB: {rate}, the measured copy bandwidth."


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; status 1 when there is no row, or one that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m sglang_dspark.bench.report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="row files; default: every one in benchmarks/results")
    files = parser.parse_args(arguments).files or sorted(RESULTS.glob("*.jsonl"))
    try:
        rows = row_files.read(files)
    except (OSError, RowError) as error:
        print(error, file=sys.stderr)
        return 1
    if not rows:
        print(
            f"no rows: {RESULTS} has no *.jsonl yet (sglang-dspark bench kernels, on a GPU)",
            file=sys.stderr,
        )
        return 1
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
