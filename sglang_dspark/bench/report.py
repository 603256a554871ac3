"""Markdown tables and pictures from rows alone. Each kind of benchmark makes its own; here a run's stand together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from .kernels import picture as kernel_pictures
from .kernels import report as kernel_tables
from .rows import Row
from .serving import picture as serving_picture
from .serving import report as serving_tables
from .step_model import picture as model_picture
from .step_model import report as model_tables
from .style import save

PAGE = "bench-results.md"
PAGE_HEAD = """# Benchmark results

Made from rows by `sglang-dspark bench report`; `docs/benchmarks.md` says what they mean. Change rows, not this page."""
# Of the benchmarks that are not kernels': their tables, what one picture is about, and what draws it.
OWN: dict[str, tuple[Callable[[list[Row]], Iterator[str]], Callable[[Row], str], Callable[[list[Row], Path], None]]] = {
    "serving": (serving_tables.markdown, lambda row: row.preset, serving_picture.draw),
    "step_model": (model_tables.markdown, model_tables.question, model_picture.draw),
}


def markdown(rows: Iterable[Row]) -> str:
    """Every run's tables, in the order of the rows."""
    return "\n\n".join(part for of_run in _runs(rows) for part in _run(of_run))


def _runs(rows: Iterable[Row]) -> list[list[Row]]:
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((row.run.device["name"], row.run.started), []).append(row)
    return list(runs.values())


def _run(rows: list[Row]) -> Iterator[str]:
    run = rows[0].run
    device, versions = run.device, ", ".join(f"{name} {version}" for name, version in run.versions.items())
    what = f"Measured on {device['name']}" if any(row.measured for row in rows) else "Not measured"
    yield f"## {what}, {run.started[:10]}"
    yield f"{device['arch']}, driver {device['driver']}; `{run.command}` at commit {run.commit}; {versions}"
    for benchmark, (parts, _, _) in OWN.items():
        if of_benchmark := [row for row in rows if row.benchmark == benchmark]:
            yield from parts(of_benchmark)
    if of_kernels := [row for row in rows if row.benchmark not in OWN]:
        yield from kernel_tables.markdown(of_kernels)


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write ``bench-results.md`` and its pictures, ``bench-*.png``, into a folder; return what was written.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page, written = folder / PAGE, []
    parts = [PAGE_HEAD]
    for of_run in _runs(rows):
        parts += _run(of_run)
        for name, draw in _pictures(of_run):
            path = folder / f"bench-{_slug(of_run[0], name)}.png"
            draw(path)
            written.append(path)
            parts.append(f"![{name}]({path.name})")
    page.write_text("\n\n".join(parts) + "\n")
    return [page, *written]


def _pictures(rows: list[Row]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Of one run: a name, and what writes the picture to a path."""
    for benchmark, (_, key, draw) in OWN.items():
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if row.benchmark == benchmark:
                groups.setdefault(key(row), []).append(row)
        for number, group in enumerate(groups.values()):
            yield f"{benchmark}-{group[0].preset}" + (f"-{number + 1}" if number else ""), partial(draw, group)
    if of_kernels := [row for row in rows if row.benchmark not in OWN]:
        for name, figure in kernel_pictures.pictures(of_kernels):
            yield name, partial(save, figure)


def _slug(row: Row, name: str) -> str:
    device = str(row.how.get("device", row.run.device["name"]))
    return re.sub(r"[^a-z0-9]+", "-", f"{device}-{row.run.started[:10]}-{name}".lower()).strip("-")
