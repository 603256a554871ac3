"""The one row schema: what is written is what is read, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest

from sglang_dspark.bench import rows
from sglang_dspark.bench.rows import Row, RowError, Run

DEVICE = {"name": "Test Device", "arch": "gfx942", "platform": "amd", "driver": "6.1"}
RUN = Run("2026-01-02T03:04:05+00:00", "sglang-dspark bench kernels", "abc", DEVICE, {"torch": "2.13"})


def row(**changes) -> Row:
    facts = {
        "benchmark": "context_kv",
        "subject": "hip",
        "preset": "m3-tp4",
        "case": {"tokens": 8, "pool_dtype": "bf16"},
        "how": {"mode": "graph", "cache": "cold", "repetitions": 20},
        "figures": {"p50_us": 2.5, "moved_bytes": 4096},
        "measured": True,
        "run": RUN,
    }
    return Row(**{**facts, **changes})


def test_rows_survive_the_file(tmp_path):
    path = tmp_path / "new" / "folder.jsonl"
    written = [row(), row(subject="triton")]
    for one in written:
        rows.append(path, one)
    assert rows.read([path]) == written
    assert len(path.read_text().splitlines()) == 2


def changed_json(change) -> str:
    found = json.loads(rows.to_json(row()))
    change(found)
    return json.dumps(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(colour="red"), "unknown keys colour"),
        (lambda found: found.pop("subject"), "missing keys subject"),
        (lambda found: found.update(schema=2), "expected a row of schema 1"),
        (lambda found: found["run"].pop("commit"), "run: missing keys commit"),
        (lambda found: found["run"].update(host="me"), "run: unknown keys host"),
        (lambda found: found.update(run="now"), "run: expected an object"),
        (lambda found: found.update(figures=[1]), "figures: expected an object"),
        (lambda found: found.update(measured=False), "how.basis of a row that is not measured: expected one of stated"),
        (lambda found: found["figures"].update(speed=1), "figures speed: expected names that end in"),
    ],
)
def test_other_rows_are_refused(change, message):
    with pytest.raises(RowError, match=message):
        rows.from_json(changed_json(change))


@pytest.mark.parametrize("line", ["", "[]", "{", "null"])
def test_what_is_no_row_is_refused(line):
    with pytest.raises(RowError):
        rows.from_json(line)


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(rows.to_json(row()) + "\n{}\n")
    with pytest.raises(RowError, match=r"rows.jsonl:2: "):
        rows.read([path])


def test_not_a_number_is_no_figure():
    """JSON has no NaN: other readers of the file would fail."""
    with pytest.raises(ValueError):
        rows.to_json(row(figures={"p50_us": float("nan")}))


def test_what_is_not_measured_says_what_it_rests_on():
    for basis in rows.BASES:
        assert not row(measured=False, how={"basis": basis}).measured
