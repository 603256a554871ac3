"""JSON from anyone: limits, and nothing that two readers read apart."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from sglang_dspark.checkpoints.errors import CheckpointError, printable
from sglang_dspark.checkpoints.files import read_config
from sglang_dspark.checkpoints.json_text import MAX_DEPTH, MAX_JSON_BYTES, parse_json, read_json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"b": {"a": 1, "a": 1}}', "twice"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b'{"\\udfff": 1}', "surrogates not allowed"),
        (b"[" * 100 + b"]" * 100, "deeper"),
        (b"[" * 100_000, "too deep"),
        (b"\xff", "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"1" * 5000, "4300"),
    ],
)
def test_what_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(text)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_in_json(name: str) -> None:
    """A strict reader refuses the file; a config may hold them where nobody reads them."""
    assert parse_json(f'{{"a": {name}}}'.encode())
    with pytest.raises(ValueError, match=f"{name} is no JSON"):
        parse_json(f'{{"a": {name}}}'.encode(), finite=True)


def test_what_is_read() -> None:
    deepest = json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    document = {"é": ["\U0001f600", None, True, 1.5, 10**300], "deep": deepest[0]}
    assert parse_json(json.dumps(document).encode()) == document


def test_a_file_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    """A sparse terabyte costs its maker nothing."""
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=f"longer than {MAX_JSON_BYTES} bytes"):
        read_json(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="config.json cannot be read: it is longer than"):
        read_config(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * MAX_JSON_BYTES // 1024


def test_messages_can_be_printed_anywhere() -> None:
    """A name from the checkpoint may hold a colour, a line that looks like the server's own, or half a character."""
    error = CheckpointError("here\x1b[2J", ["tensor a\nINFO all is well", "\x1b[31mred", "\ud800", "\u202egnp.exe"])
    text = str(error)
    assert text.count("\n") == 4 and "\x1b" not in text and "\u202e" not in text
    text.encode("utf-8")
    assert "a\\nINFO all is well" in text and "\\ud800" in text


def test_messages_are_no_flood() -> None:
    error = CheckpointError("here", [f"tensor {i} " + "x" * 10_000 for i in range(5000)])
    assert len(str(error)) < 1_100_000 and str(error).endswith("and 4500 more")
    assert len(error.problems) == 5000
    assert printable("x" * 5000).endswith("... (5000 characters)")
