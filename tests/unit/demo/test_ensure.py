"""The cached pair: built once, whole or not there at all, whoever else is building."""

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark.demo import DemoSpec, ensure
from sglang_dspark.demo.pair import MANIFEST

SPEC = DemoSpec.tiny()
ROOT = Path(__file__).parents[3]


def stamps(pair) -> list[int]:
    return [path.stat().st_mtime_ns for path in sorted(pair.target.parent.rglob("*"))]


def test_the_second_call_builds_nothing(tmp_path):
    first = ensure(tmp_path, spec=SPEC)
    before = stamps(first)
    assert ensure(tmp_path, spec=SPEC) == first
    assert stamps(first) == before


def test_the_default_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ensure(spec=SPEC).target.is_relative_to(tmp_path / "xdg" / "sglang-dspark")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ensure(spec=SPEC).target.is_relative_to(tmp_path / "home" / ".cache" / "sglang-dspark")


def test_other_options_live_in_another_folder(tmp_path):
    pairs = [ensure(tmp_path, layout=layout, spec=SPEC) for layout in ("automodel", "released")]
    pairs.append(ensure(tmp_path, spec=DemoSpec.tiny(block_size=3)))
    assert len({pair.target for pair in pairs}) == 3


@pytest.mark.parametrize("damage", ["missing file", "cut file", "changed byte", "no manifest"])
def test_a_broken_pair_is_built_again(tmp_path, damage):
    pair = ensure(tmp_path, spec=SPEC)
    weights = pair.draft / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "missing file":
        weights.unlink()
    elif damage == "cut file":
        weights.write_bytes(whole[:-1])
    elif damage == "changed byte":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        (pair.draft.parent / MANIFEST).unlink()
    assert ensure(tmp_path, spec=SPEC) == pair
    assert weights.read_bytes() == whole
    assert (pair.draft.parent / MANIFEST).exists()


def test_a_build_that_dies_leaves_nothing_behind(tmp_path, monkeypatch):
    import sglang_dspark.demo.pair as module

    def disk_full(*_arguments):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_tokenizer", disk_full)
        with pytest.raises(OSError, match="No space left"):
            ensure(tmp_path, spec=SPEC)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.lock"]
    assert (ensure(tmp_path, spec=SPEC).draft / "model.safetensors").exists()


WORKER = """
import sys, time
from pathlib import Path
from sglang_dspark.demo import DemoSpec, ensure
cache = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
pair = ensure(cache, spec=DemoSpec.tiny())
print(sorted((path.name, path.stat().st_size) for path in pair.target.parent.rglob("*.*")))
"""


def test_processes_that_start_together_share_one_pair(tmp_path):
    """Each sees a whole pair at the moment its own call returns, and nothing but the pair is left."""
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    workers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    listings = {worker.communicate(timeout=60)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(listings) == 1 and "model.safetensors" in listings.pop()
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["demo", "demo.lock"]
