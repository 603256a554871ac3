"""Files that were built on this machine: private to the user, and published whole or not at all.

A file's name holds two digests: of everything that went into it, which finds it again, and of its own bytes, which are
compared before it is used. A file that was cut, damaged or half written is never loaded (the dynamic loader would end
the process): it is removed and built again. Nothing is ever replaced by something else, so ranks that start together
may build the same file twice, and the second rename changes nothing.

Code is loaded from here, so the folder must be this user's and closed to others. Whoever exchanges it for one of their
own meets the same check.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_dspark.ops.native.toolchain import NotBuilt

VARIABLE = "SGLANG_DSPARK_CACHE"
_BUILDING = ".building-"
# A build takes ten minutes at most (`toolchain.compile_file`): what is older was left by one that was killed.
_STALE_S = 3600


def digest(parts: Iterable[bytes | str]) -> str:
    """One name for all the parts: their order and their ends count."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:24]


def folder() -> Path:
    """Where built files are kept: a folder that only this user can enter.

    Raises:
        NotBuilt: it cannot be made, or others could put code into it.
    """
    asked = os.environ.get(VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = (Path(asked) if asked else base / "sglang-dspark" / "kernels").absolute()
    try:
        for missing in reversed([place for place in (path, *path.parents) if not place.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        link, found = path.lstat(), path.stat()
    except OSError as error:
        raise NotBuilt(f"no folder for compiled kernels: {error} (set {VARIABLE} to a writable one)") from error
    if not stat.S_ISDIR(found.st_mode):
        raise NotBuilt(f"no folder for compiled kernels: {path} is no folder (set {VARIABLE} to a writable one)")
    if {link.st_uid, found.st_uid} != {os.getuid()} or stat.S_IMODE(found.st_mode) & 0o077:
        raise NotBuilt(
            f"{path} must belong to this user and be closed to others, since code is loaded from it; found owner "
            f"{found.st_uid} and mode {stat.S_IMODE(found.st_mode):o}{_of_the_link(link)} "
            f"(chmod 700 it, or set {VARIABLE} to another)"
        )
    return path


def published(name: str, build: Callable[[Path], None]) -> Path:
    """The file of that name, built into a place of its own and renamed when it is whole.

    Its own name is `name` with the digest of its bytes before the suffix.

    Raises:
        NotBuilt: the build failed, or the folder is read-only, full, or not private.
    """
    place = folder()
    try:
        if found := _whole_file(place, name):
            return found
        _sweep(place)
        with _temporary(place) as work:
            unfinished = work / name
            build(unfinished)
            if not (content := unfinished.read_bytes()):
                raise NotBuilt(f"{name}: the compiler said nothing and wrote an empty file")
            path = place / _full_name(name, content)
            unfinished.chmod(0o600)
            _to_disk(unfinished)
            os.replace(unfinished, path)
    except OSError as error:
        raise NotBuilt(
            f"{name} cannot be kept in {place}: {error.strerror or error} (make room or make it writable, or set "
            f"{VARIABLE} to another folder)"
        ) from error
    return path


def _whole_file(place: Path, name: str) -> Path | None:
    """The published file of that name whose bytes are what its own name says; others are removed."""
    stem, suffix = os.path.splitext(name)
    for path in sorted(place.iterdir()):
        if not (path.name.startswith(f"{stem}.") and path.name.endswith(suffix)):
            continue
        try:
            found = path.lstat()
            private = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022
            if stat.S_ISREG(found.st_mode) and private and _full_name(name, path.read_bytes()) == path.name:
                return path
            path.unlink()
        except FileNotFoundError:  # another rank removed it
            continue
    return None


def _full_name(name: str, content: bytes) -> str:
    stem, suffix = os.path.splitext(name)
    return f"{stem}.{hashlib.sha256(content).hexdigest()[:32]}{suffix}"


@contextmanager
def _temporary(place: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=place))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove what killed builds have left."""
    for path in place.glob(f"{_BUILDING}*"):
        try:
            stale = time.time() - path.lstat().st_mtime > _STALE_S
        except FileNotFoundError:
            continue
        if stale:
            shutil.rmtree(path, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Before the rename: a name must not survive a power cut that its bytes do not."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _of_the_link(link: os.stat_result) -> str:
    return f", behind a link of owner {link.st_uid}" if stat.S_ISLNK(link.st_mode) else ""
