"""Files that are whole or refused: a digest in front of the content, and one rename at the end of writing.

A training state is read back after a crash, perhaps the very crash that cut its writing short. torch.load notices many
damages and not all of them; a flipped bit in a weight it cannot notice.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

_MAGIC = b"dspark1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedFile(ValueError):
    """A file's content is not what was written."""


def publish_bytes(path: Path, content: bytes) -> None:
    """Write the file so that a reader finds the old content or the new one, never part of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def save(path: Path, value: Any) -> None:
    """Store tensors in plain containers."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    content = buffer.getvalue()
    publish_bytes(path, _MAGIC + hashlib.sha256(content).digest() + content)


def load(path: Path) -> Any:
    """Read what `save` stored.

    Raises:
        DamagedFile: the file is cut short, changed, or was never written by `save`.
    """
    stored = path.read_bytes()
    start = len(_MAGIC) + _DIGEST_BYTES
    if stored[: len(_MAGIC)] != _MAGIC:
        raise DamagedFile(f"asked for a training state, found a file of another kind: {path}; check the path")
    if hashlib.sha256(stored[start:]).digest() != stored[len(_MAGIC) : start]:
        raise DamagedFile(
            f"asked for a whole training state, found {path} damaged (its digest differs): delete it and start again, "
            "or put back a copy"
        )
    return torch.load(io.BytesIO(stored[start:]), weights_only=True)
