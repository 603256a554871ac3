"""The cache of built files: private, whole or absent, and safe when two ranks start at once.

Tests run as root and as anybody: another user's folder is made by giving it away where that is allowed, and by being
somebody else where it is not.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_dspark.ops.native import cache
from sglang_dspark.ops.native.toolchain import NotBuilt

NOBODY = 65534
ROOT = os.getuid() == 0


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "kernels"
    monkeypatch.setenv(cache.VARIABLE, str(path))
    return path


def writes(content: bytes):
    """A build of that content."""
    return lambda output: output.write_bytes(content)


def never(output: Path) -> None:
    raise AssertionError("built again")


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the path another user's."""
    if ROOT:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)


def names(folder: Path) -> list[str]:
    """What lies there, the digests of contents left out."""
    return sorted(path.name.split(".")[0] + path.suffix for path in folder.iterdir())


def test_digest_counts_order_and_ends():
    assert len({cache.digest(parts) for parts in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"])}) == 4


def test_builds_once_into_a_closed_folder(folder):
    found = cache.published("x.so", writes(b"code"))
    assert found.read_bytes() == b"code" and found.parent == folder
    assert cache.published("x.so", never) == found
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(found.stat().st_mode) == 0o600
    assert names(folder) == ["x.so"]


def test_nothing_is_open_to_others_whatever_the_umask(tmp_path, monkeypatch):
    """Containers and batch systems run with umask 0: the folders on the way would be everyone's too."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "a" / "b" / "kernels"))
    before = os.umask(0)
    try:
        found = cache.published("x.so", writes(b"code"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert {stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "a", tmp_path / "a" / "b")} == {0o700}


def test_a_failed_build_leaves_nothing(folder):
    """A half-written file with the right name would be loaded by everyone after."""

    def build(output):
        output.write_bytes(b"half")
        raise NotBuilt("the compiler stopped")

    with pytest.raises(NotBuilt, match="the compiler stopped"):
        cache.published("x.so", build)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("content", [None, b""])
def test_a_compiler_that_writes_nothing_has_failed(folder, content):
    with pytest.raises(NotBuilt):
        cache.published("x.so", writes(content) if content is not None else lambda output: None)
    assert os.listdir(folder) == []


# --- whose it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o750, 0o701])
def test_a_folder_open_to_others_is_refused(folder, mode):
    """Whoever can write there can run code as this user."""
    folder.mkdir(mode=0o700)
    folder.chmod(mode)
    with pytest.raises(NotBuilt, match=f"mode {mode:o} .chmod 700 it, or set SGLANG_DSPARK_CACHE"):
        cache.folder()


def test_another_users_folder_is_refused(folder, monkeypatch):
    """The attack on a name in /tmp: the folder was made before, closed, with code in it."""
    cache.published("x.so", writes(b"code"))
    give_away(folder, monkeypatch)
    with pytest.raises(NotBuilt, match="must belong to this user"):
        cache.published("x.so", never)


def test_another_users_link_is_refused(folder, tmp_path, monkeypatch):
    """A link in /tmp that leads into one of this user's own closed folders, where files would then be made."""
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    folder.symlink_to(mine)
    assert cache.folder() == folder  # this user's own link is fine
    give_away(folder, monkeypatch)
    with pytest.raises(NotBuilt, match="must belong to this user"):
        cache.folder()


@pytest.mark.parametrize("fault", ["writable", "foreign", "link"])
def test_a_file_that_others_could_have_written_is_built_again(folder, tmp_path, monkeypatch, fault):
    found = cache.published("x.so", writes(b"code"))
    if fault == "writable":
        found.chmod(0o666)
    elif fault == "link":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(b"code")
        found.unlink()
        found.symlink_to(elsewhere)
    elif ROOT:
        os.chown(found, NOBODY, NOBODY)
    else:
        pytest.skip("only root can give a single file away")
    built = []
    again = cache.published("x.so", lambda output: built.append(output) or output.write_bytes(b"code"))
    assert built and again == found and again.lstat().st_uid == os.getuid()
    assert stat.S_IMODE(again.lstat().st_mode) == 0o600 and not again.is_symlink()


@pytest.mark.parametrize("path", ["file/kernels", "file"])
def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path, monkeypatch, path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / path))
    with pytest.raises(NotBuilt, match="no folder for compiled kernels: .*set SGLANG_DSPARK_CACHE"):
        cache.folder()


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"co", b"codE", b"code and more"])
def test_a_damaged_file_is_built_again_and_never_used(folder, damage):
    """dlopen of a cut library is a bus error: the server would die without a message."""
    found = cache.published("x.so", writes(b"code"))
    found.write_bytes(damage)
    assert cache.published("x.so", writes(b"code")).read_bytes() == b"code"
    assert names(folder) == ["x.so"]


def test_another_name_s_file_is_left_alone(folder):
    cache.published("x.so", writes(b"one"))
    assert cache.published("xy.so", writes(b"two")).read_bytes() == b"two"
    assert cache.published("x.so", never).read_bytes() == b"one"


def test_a_cut_library_does_not_end_the_process(folder):
    """The whole way: the host kernels are compiled, cut in the cache, and the next process builds and runs them."""
    from ..context_kv.native_support import host_missing

    if reason := host_missing():
        pytest.skip(reason)
    child = [sys.executable, "-c", LOADS]
    assert subprocess.run(child, capture_output=True, text=True).stdout.strip() == "loaded"
    (library,) = folder.glob("context_kv_writer-host-*.so")
    size = library.stat().st_size
    os.truncate(library, size // 2)
    run = subprocess.run(child, capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "loaded"), run.stderr
    assert library.stat().st_size == size


LOADS = """
from sglang_dspark.ops.context_kv import host_backend
host_backend.library()
print("loaded")
"""


# --- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("where", ["place", "build", "sync", "rename"])
def test_a_disk_that_refuses_is_a_reason_and_no_crash(folder, monkeypatch, number, where):
    """`auto` then takes the next backend; a named one says this."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    build = writes(b"code")
    if where == "place":
        monkeypatch.setattr(cache.tempfile, "mkdtemp", refuse)
    elif where == "build":
        build = refuse
    else:
        monkeypatch.setattr(cache.os, {"sync": "fsync", "rename": "replace"}[where], refuse)
    with pytest.raises(NotBuilt, match=f"{os.strerror(number)} .make room or make it writable, or set SGLANG_DSPARK"):
        cache.published("x.so", build)
    assert os.listdir(folder) == []


def test_a_read_only_folder_serves_what_it_has(folder, monkeypatch):
    """A cache that was filled when an image was built."""
    found = cache.published("x.so", writes(b"code"))

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for module, name in ((cache.tempfile, "mkdtemp"), (cache.os, "replace"), (cache.os, "unlink"), (cache.os, "mkdir")):
        monkeypatch.setattr(module, name, refuse)
    assert cache.published("x.so", never) == found


READ_ONLY = """
import os, sys
from sglang_dspark.ops.native import cache
from sglang_dspark.ops.native.toolchain import NotBuilt
if os.getuid() == 0:
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
try:
    cache.published("x.so", lambda output: output.write_bytes(b"code"))
except NotBuilt as reason:
    print(reason)
"""


def test_a_read_only_folder_is_a_reason(folder, tmp_path):
    """Really read-only, to somebody who is not root."""
    folder.mkdir(mode=0o700)
    folder.chmod(0o500)
    if ROOT:
        os.chown(folder, NOBODY, NOBODY)
        for place in tmp_path.parents[:3]:  # up to pytest's own root, below which each xdist worker has a folder
            place.chmod(place.stat().st_mode | 0o055)
        tmp_path.chmod(0o755)
    run = subprocess.run([sys.executable, "-c", READ_ONLY], capture_output=True, text=True)
    assert "x.so cannot be kept in" in run.stdout and "Permission denied" in run.stdout, run.stderr


FULL = """
import resource, signal
from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
from tests.unit.ops.context_kv.native_support import SPEC, tables
choice = context_kv.choose(platforms.describe("cpu", "cpu"), SPEC, tables())
print(choice.backend, choice.refused["host"])
"""


def test_a_full_disk_costs_the_backend_and_not_the_server(folder):
    """No file may grow past 8 KB, the compiler's neither: torch serves, and the choice says why."""
    run = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, cwd=Path(__file__).parents[4])
    assert run.stdout.startswith("torch ("), run.stdout + run.stderr
    assert not list(folder.glob("*.so"))


# --- more than one process -------------------------------------------------------------------------------------------

RANK = """
import sys, time
from sglang_dspark.ops.native import cache

def build(output):
    with output.open("wb") as file:
        for _ in range(20):
            file.write(b"code" * 1000)
            file.flush()
            time.sleep(0.01)

print(len(cache.published("x.so", build).read_bytes()))
"""


def test_two_ranks_at_once_see_whole_files(folder):
    """Building under the final name would let the second rank load what the first has written so far."""
    ranks = [subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [rank.communicate()[0].strip() for rank in ranks] == ["80000"] * 3
    assert names(folder) == ["x.so"]


def test_ranks_whose_compilers_differ_by_a_timestamp(folder):
    """Some write the time into the file: each rank's file is whole under its own name, and one is used from then on."""
    first = cache.published("x.so", writes(b"at noon"))
    second = folder / cache._full_name("x.so", b"a second later")
    second.write_bytes(b"a second later")
    second.chmod(0o600)
    assert cache.published("x.so", never) in (first, second)


KILLED = """
import sys, time
from sglang_dspark.ops.native import cache

def build(output):
    output.write_bytes(b"half")
    print("building", flush=True)
    time.sleep(60)

cache.published("x.so", build)
"""


def test_a_build_that_was_killed_is_done_again_and_swept_up_later(folder):
    """kill -9 leaves its half beside the cache's names, never under one."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout.readline().strip() == "building"
        rank.send_signal(signal.SIGKILL)
    (left,) = folder.iterdir()
    assert left.name.startswith(".building-")
    assert cache.published("x.so", writes(b"code")).read_bytes() == b"code"
    assert left.exists()  # it might be another rank's that is still at work
    old = time.time() - 2 * 3600
    os.utime(left, (old, old))
    cache.published("y.so", writes(b"code"))
    assert names(folder) == ["x.so", "y.so"]
