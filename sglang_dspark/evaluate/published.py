"""What others published of accepted lengths, shown beside a result where the target is the same.

`published.json` holds the figures with their source and conditions: the DSpark rows of the DSpark paper's Table 1
(what it calls Gemma4-12B is google/gemma-4-12B-it in DeepSpec's README), and of MiniMax-M3 the one table that could
be read in full, which is of an EAGLE3 draft. The model card of nvidia/MiniMax-M3-DSpark has an evaluation too, but
its figures were not at hand when the file was written; nothing stands in it that was not read in its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Published:
    """One published table's row: a target with one draft."""

    target: str
    draft: str
    proposals: int
    source: str
    conditions: str
    accepted_length: Mapping[str, float]

    def of(self, data_set: str) -> float | None:
        """The accepted length on a data set, by any spelling of its name; None where none was published."""
        return self.accepted_length.get(canonical_set(data_set) or "")


def for_target(model: str) -> Published | None:
    """The row for a target, by the last part of its name or path; None where there is none."""
    plain = _plain(Path(model).name)
    return next((row for row in _rows() if _plain(row.target) == plain), None)


def canonical_set(name: str) -> str | None:
    """The data set's name in the table: "MATH-500" is "math500"; None for any other data set."""
    plain = _plain(name)
    return next((canonical for canonical, spellings in _table()["sets"].items() if plain in spellings), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return table


def _rows() -> list[Published]:
    return [Published(**row) for row in _table()["figures"]]
