"""JSON from a checkpoint, which may come from anyone: read with limits, and never in a way that two readers read apart.

Python's reader takes the last of two equal keys, halves of surrogate pairs, NaN, and any depth that the stack bears.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

# Of a config or an index: a whole M3's index is about 10 MB.
MAX_JSON_BYTES = 64 << 20
MAX_DEPTH = 64


def open_plain(path: Path) -> BinaryIO:
    """Open a file, through links too, and raise OSError unless it is a plain one: a pipe would wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no plain file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: it cannot be opened, or is no plain file.
        ValueError: it is too long, or no JSON that every reader reads alike.
    """
    with open_plain(path) as file:
        text = file.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it is longer than {MAX_JSON_BYTES} bytes")
    return parse_json(text)


def parse_json(text: bytes, finite: bool = False) -> Any:
    """Parse JSON in UTF-8.

    Args:
        text: the bytes.
        finite: refuse NaN and Infinity anywhere, as strict readers do.

    Raises:
        ValueError: it is no JSON, names a key twice, nests too deep, or holds half a character.
    """
    try:
        content = json.loads(
            text.decode("utf-8"), object_pairs_hook=_table, parse_constant=_no_constant if finite else None
        )
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    _check(content)
    return content


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands there twice")
    return table


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _check(content: Any) -> None:
    """Depth and characters, without recursion."""
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, str) and not value.isascii():
                value.encode("utf-8")  # half a surrogate pair raises UnicodeEncodeError, a ValueError
            elif isinstance(value, dict):
                inner += value.keys()
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return
        level = inner
    raise ValueError(f"it nests deeper than {MAX_DEPTH}")
