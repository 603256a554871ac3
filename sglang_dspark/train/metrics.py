"""Metrics of a run as JSON lines, one a step; a resumed run cuts off what it is about to repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

# Numerator and denominator: sums add up over micro-batches and machines, ratios do not.
Sums = dict[str, tuple[float, float]]


def ratios(sums: Sums) -> dict[str, float]:
    """Each numerator by its denominator; nothing where nothing was counted."""
    return {name: numerator / denominator for name, (numerator, denominator) in sums.items() if denominator}


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Every whole line of the file; a line that a crash cut short is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class MetricsFile:
    """Appends one line a step, from `start` on."""

    def __init__(self, path: Path, start: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_metrics(path) if row["step"] < start] if path.exists() else []
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._file.writelines(json.dumps(row) + "\n" for row in kept)

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one step's values."""
        self._file.write(json.dumps({"step": step, **{name: round(value, 6) for name, value in values.items()}}) + "\n")

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()
