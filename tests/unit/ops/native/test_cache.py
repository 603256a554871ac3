"""The cache of built files: private, whole or absent, and safe when two ranks start at once."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import pytest

from sglang_dspark.ops.native import cache
from sglang_dspark.ops.native.toolchain import NotBuilt


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "kernels"
    monkeypatch.setenv(cache.VARIABLE, str(path))
    return path


def test_digest_counts_order_and_ends():
    assert len({cache.digest(parts) for parts in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"])}) == 4


def test_builds_once_into_a_closed_folder(folder):
    built = []

    def build(output):
        built.append(output)
        output.write_bytes(b"code")

    assert cache.published("x.so", build).read_bytes() == b"code"
    assert cache.published("x.so", build) == folder / "x.so"
    assert len(built) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.listdir(folder) == ["x.so"]


def test_a_failed_build_leaves_nothing(folder):
    """A half-written file with the right name would be loaded by everyone after."""

    def build(output):
        output.write_bytes(b"half")
        raise NotBuilt("the compiler stopped")

    with pytest.raises(NotBuilt, match="the compiler stopped"):
        cache.published("x.so", build)
    assert os.listdir(folder) == []


def test_a_folder_open_to_others_is_refused(folder):
    """Whoever can write there can run code as this user."""
    folder.mkdir(mode=0o700)
    folder.chmod(0o770)
    with pytest.raises(NotBuilt, match="mode 770 .chmod 700 it, or set SGLANG_DSPARK_CACHE"):
        cache.folder()


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "kernels"))
    with pytest.raises(NotBuilt, match="no folder for compiled kernels: .*set SGLANG_DSPARK_CACHE"):
        cache.folder()


FULL, READ_ONLY = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_folder_that_takes_no_files_says_what_to_do(folder, monkeypatch, error, call):
    """As another error it would end a server that has a backend which needs no compiler."""
    cache.folder()

    def fail(*_):
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(NotBuilt, match=f"does not take x.so: .*{error.strerror}.*free space there, or set"):
        cache.published("x.so", lambda output: output.write_bytes(b"code"))
    monkeypatch.undo()
    assert os.listdir(folder) == []


def test_a_read_only_folder_serves_what_it_has(folder, monkeypatch):
    """A cache that was filled when an image was built."""
    cache.published("x.so", lambda output: output.write_bytes(b"code"))
    before = os.mkdir

    def mkdir(path, *rest, **options):
        if str(path).startswith(f"{folder}/"):
            raise READ_ONLY
        before(path, *rest, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert cache.published("x.so", lambda output: pytest.fail("built again")).read_bytes() == b"code"


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
    assert os.listdir(folder) == ["x.so"]
