"""Files that were built on this machine: private to the user, and published whole or not at all.

A file's name is the digest of everything that went into it, so a name that exists is right, and nothing is ever
replaced. Ranks that start together may build the same file twice; the second rename changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from sglang_dspark.ops.native.toolchain import NotBuilt

VARIABLE = "SGLANG_DSPARK_CACHE"


def digest(parts: Iterable[bytes | str]) -> str:
    """One name for all the parts: their order and their ends count."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:24]


def folder() -> Path:
    """Where built files are kept: a folder that only this user can enter, since code is loaded from it."""
    asked = os.environ.get(VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(asked) if asked else base / "sglang-dspark" / "kernels"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise NotBuilt(f"no folder for compiled kernels: {error} (set {VARIABLE} to a writable one)") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise NotBuilt(
            f"{path} must belong to this user and be closed to others, since code is loaded from it; found owner "
            f"{found.st_uid} and mode {stat.S_IMODE(found.st_mode):o} (chmod 700 it, or set {VARIABLE} to another)"
        )
    return path


def published(name: str, build: Callable[[Path], None]) -> Path:
    """The file of that name, built into a place of its own and renamed when it is whole.

    Raises:
        NotBuilt: `build` could not, or the folder takes no more files; a read-only one serves those it has.
    """
    path = folder() / name
    if path.exists():
        return path
    try:
        with tempfile.TemporaryDirectory(prefix=".building-", dir=path.parent, ignore_cleanup_errors=True) as place:
            unfinished = Path(place) / name
            build(unfinished)
            os.replace(unfinished, path)
    except OSError as error:
        raise NotBuilt(
            f"{path.parent} does not take {name}: {error} (free space there, or set {VARIABLE} to a writable folder)"
        ) from error
    return path
