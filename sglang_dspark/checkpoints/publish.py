"""A folder that appears whole or not at all.

It is filled beside its place, under a name of its own, and renamed when it is finished.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_dspark.checkpoints.errors import CheckpointError


def require_free(destination: Path) -> None:
    """Refuse a destination that exists, or has no folder to lie in.

    Raises:
        CheckpointError: it cannot be made.
    """
    if os.path.lexists(destination):
        raise CheckpointError(
            str(destination), ["asked for a new folder, found that it exists; name another or remove it"], "destination"
        )
    if not destination.parent.is_dir():
        problem = f"asked for a folder in {destination.parent}, found no such folder; make it first"
        raise CheckpointError(str(destination), [problem], "destination")


@contextmanager
def published(destination: Path) -> Iterator[Path]:
    """A new empty folder to fill; it takes `destination`'s place at the end, and is removed on any error.

    Raises:
        CheckpointError: the destination exists, at the beginning or at the end.
    """
    require_free(destination)
    work = destination.with_name(f".{destination.name}.partial-{secrets.token_hex(4)}")
    work.mkdir()
    try:
        yield work
        # rename() would silently take the place of an empty folder.
        require_free(destination)
        work.rename(destination)
    finally:
        shutil.rmtree(work, ignore_errors=True)
