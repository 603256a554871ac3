"""One JSON row a case, of every benchmark: the only thing that reports and documents read.

A file holds one row a line. A row stands alone: it names its device, versions, commit and command line. What the keys
hold, so that all benchmarks agree:

    benchmark  the op ("context_kv", "qk_norm_rope"), "device" (what the device itself gives), or what else was run
    subject    who did it: a backend, "sglang", "device_copy"; for arithmetic the chip or the code it is about
    measured   timed on `run.device`. On `run.device["platform"]` "cpu" that proves the benchmark, not a speed: a report
               says so
    how        the conditions. A timed row has "mode", "cache", "repetitions", ...; one that is not measured has
               "basis", one of `BASES`

A key that a benchmark adds to ``case``, ``how`` or ``figures`` needs no change here. A figure ends in its unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

SCHEMA = 1
# A figure's name ends in its unit: a time, a size, a rate, a part of a whole, a number of things.
UNITS = ("_us", "_ms", "_s", "_bytes", "_gb_per_s", "_per_s", "_share", "_count", "_tokens")
# What a figure that was not measured rests on: a data sheet, compiled code as it lies there, compiled code as an
# interpreter runs it, a model of a whole step.
STATED, COMPILED, EMULATED, MODELLED = BASES = ("stated", "compiled", "emulated", "modelled")


class RowError(ValueError):
    """A row that does not follow the schema."""


@dataclass(frozen=True)
class Run:
    """What all rows of one run share. ``device`` holds name, arch, platform and driver; ``started`` is UTC."""

    started: str
    command: str
    commit: str
    device: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """One case of one subject.

    ``benchmark`` is the op, or what else was run; ``subject`` is who was timed: a backend, "sglang", "device_copy".
    ``case`` is what was done (shapes, types), ``how`` the conditions (graph or eager, cache, repetitions), and
    ``figures`` what came out. ``measured`` is false for arithmetic and emulation, which no report calls a timing.
    """

    benchmark: str
    subject: str
    preset: str
    case: Mapping[str, int | str]
    how: Mapping[str, int | str | bool]
    figures: Mapping[str, float]
    measured: bool
    run: Run

    def __post_init__(self) -> None:
        if not self.measured and self.how.get("basis") not in BASES:
            raise RowError(
                f"how.basis of a row that is not measured: expected one of {', '.join(BASES)}, "
                f"found {self.how.get('basis')!r}"
            )
        if unitless := [name for name in self.figures if not name.endswith(UNITS)]:
            raise RowError(f"figures {', '.join(unitless)}: expected names that end in one of {', '.join(UNITS)}")


def to_json(row: Row) -> str:
    """One line."""
    return json.dumps({"schema": SCHEMA, **asdict(row)}, allow_nan=False)


def from_json(line: str) -> Row:
    """The row of a line; anything unknown or missing is an error."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise RowError(f"expected one JSON object a line, found {line[:60]!r}: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RowError(f"expected a row of schema {SCHEMA}, found {line[:60]!r}: use the version that wrote it")
    del found["schema"]
    _check_keys("row", found, Row)
    _check_keys("run", found["run"], Run)
    for name in ("case", "how", "figures"):
        if not isinstance(found[name], dict):
            raise RowError(f"row {name}: expected an object, found {found[name]!r}")
    return Row(**{**found, "run": Run(**found["run"])})


def append(path: Path, row: Row) -> None:
    """Add a row to a file at once, so that a run that dies keeps what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(to_json(row) + "\n")


def read(paths: Iterable[Path]) -> list[Row]:
    """Every row of the files, in order."""
    rows = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                rows.append(from_json(line))
            except RowError as error:
                raise RowError(f"{path}:{number}: {error}") from error
    return rows


def _check_keys(what: str, found: Any, kind: type) -> None:
    if not isinstance(found, dict):
        raise RowError(f"{what}: expected an object, found {found!r}")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(found) - known):
        raise RowError(f"{what}: unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if missing := sorted(known - set(found)):
        raise RowError(f"{what}: missing keys {', '.join(missing)}")
