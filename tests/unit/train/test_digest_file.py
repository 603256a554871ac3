"""A training state is read whole or not at all."""

import pytest
import torch

from sglang_dspark.train import digest_file

VALUE = {"step": 3, "weights": {"a": torch.arange(50.0)}}


@pytest.fixture
def path(tmp_path):
    digest_file.save(tmp_path / "state.pt", VALUE)
    return tmp_path / "state.pt"


def test_what_was_saved_comes_back(path):
    found = digest_file.load(path)
    assert found["step"] == 3 and torch.equal(found["weights"]["a"], VALUE["weights"]["a"])
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]


@pytest.mark.parametrize("keep", [1, 30, 60, 500, -1])
def test_a_file_cut_short_is_refused(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(digest_file.DamagedFile, match="state.pt"):
        digest_file.load(path)


def test_every_changed_byte_is_seen(path):
    """torch.load alone lets a changed weight pass."""
    content = path.read_bytes()
    for position in range(0, len(content), 97):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(digest_file.DamagedFile):
            digest_file.load(path)


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    monkeypatch.setattr(digest_file.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        digest_file.save(path, {"step": 4})
    monkeypatch.undo()
    assert digest_file.load(path)["step"] == 3
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]
