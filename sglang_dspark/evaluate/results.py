"""The JSON of an evaluation: one schema, and everything that a table, a picture or a later reader needs.

A file stands alone: it names versions, commit, command line, the judge in its own words, settings, and what was
published for the same target. Figures that follow from the counts are written out too, for readers without this
package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_dspark.bench.rows import Run
from sglang_dspark.evaluate.acceptance import SetResult
from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.published import Published

SCHEMA = 1
KINDS = ("acceptance", "calibration")


class ResultsError(ValueError):
    """A file that is no results of this schema."""


def acceptance_table(
    run: Run, judge: Mapping[str, Any], settings: Settings, sets: Sequence[SetResult], published: Published | None
) -> dict[str, Any]:
    """The table of one `eval acceptance`."""
    return {
        "schema": SCHEMA,
        "kind": "acceptance",
        "run": asdict(run),
        "judge": dict(judge),
        "settings": asdict(settings),
        "proposals": max(result.counts.gamma for result in sets),
        "sets": [_set_table(result, published) for result in sets],
        "published": None if published is None else _source(published),
    }


def write(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read(path: Path, kind: str) -> dict[str, Any]:
    """A table of this kind.

    Raises:
        ResultsError: the file is something else.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"asked for results in {path}, which cannot be read: {error}") from None
    found = {key: table.get(key) for key in ("schema", "kind")} if isinstance(table, dict) else {}
    if found != {"schema": SCHEMA, "kind": kind}:
        raise ResultsError(f"asked for results of schema {SCHEMA} and kind {kind} in {path}, found {found or 'others'}")
    return dict(table)


def _set_table(result: SetResult, published: Published | None) -> dict[str, Any]:
    counts = result.counts
    return {
        "name": result.name,
        "file": result.file,
        "format": result.format,
        "prompts": result.prompts,
        "prompt_tokens": result.prompt_tokens,
        "new_tokens": result.new_tokens,
        "rounds": counts.rounds,
        "rounds_by_kept": list(counts.kept),
        "rounds_that_verified": list(counts.verified),
        "accepted_length": counts.accepted_length,
        "verified_length": counts.verified_length,
        "trimmed": counts.trimmed,
        "acceptance": counts.acceptance,
        "survival": counts.survival,
        "published_accepted_length": None if published is None else published.of(result.name),
    }


def _source(published: Published) -> dict[str, Any]:
    keys = ("target", "draft", "proposals", "source", "conditions")
    return {key: getattr(published, key) for key in keys}
