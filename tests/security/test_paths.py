"""What is read and copied stays in the checkpoint's folder; the hub's cache, which is all links, goes on working."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from sglang_dspark.checkpoints import CheckpointError, Layout
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.checkpoints.files import read_tensors
from sglang_dspark.checkpoints.lint import Level, lint

from .payloads import pair, read_everything

INDEX = "model.safetensors.index.json"
SECRET = "the user's own key"


def in_the_hubs_cache(draft: Path, cache: Path) -> Path:
    """The draft as huggingface_hub keeps it: a snapshot of links to blobs that are named by their content."""
    snapshot, blobs = cache / "snapshots" / ("0" * 40), cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in draft.iterdir():
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(blob)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_draft_in_the_hubs_cache(tmp_path: Path) -> None:
    draft, target = pair(tmp_path)
    snapshot = in_the_hubs_cache(draft, tmp_path / "models--someone--draft")
    assert read_everything(snapshot, target, tmp_path / "converted") == []
    assert {path.name for path in (tmp_path / "converted").iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json")
    }
    assert not any(path.is_symlink() for path in (tmp_path / "converted").iterdir())
    assert all(finding.level is Level.OK for finding in lint(snapshot, target))


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd.safetensors", "../secret.safetensors", "..", ".", "", "a/../../secret.safetensors"),
        *("sub/model.safetensors", "./model.safetensors", "..\\secret.safetensors", "a\x00.safetensors"),
        "file:///etc/passwd.safetensors",
    ],
)
def test_an_index_that_points_elsewhere(tmp_path: Path, name: str) -> None:
    """A folder from anyone must not make the server open other files, nor name them in an error as readable."""
    draft, target = pair(tmp_path)
    os.link(draft / "model.safetensors", tmp_path / "secret.safetensors")
    (draft / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": name}}))
    refusals = read_everything(draft, target, tmp_path / "converted")
    assert len(refusals) == 3 and all("names files outside the checkpoint" in refusal for refusal in refusals)


def test_weights_may_be_links_of_whoever_made_the_folder(tmp_path: Path) -> None:
    """Shards are often linked from a big disk. Only what is a whole safetensors file of the draft's tensors is read."""
    draft, target = pair(tmp_path)
    (draft / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (draft / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    assert read_everything(draft, target, tmp_path / "converted") == []


@pytest.mark.parametrize("name", ["tokenizer.json", "README.md", "vocab.txt"])
def test_a_link_out_of_the_folder_is_not_copied(tmp_path: Path, name: str) -> None:
    """A folder from anyone, converted and uploaded, would carry the user's own files along."""
    draft, target = pair(tmp_path)
    (tmp_path / "id_rsa").write_text(SECRET)
    (draft / name).unlink(missing_ok=True)
    (draft / name).symlink_to(tmp_path / "id_rsa")
    made = plan(draft, Layout.RELEASED, target)
    assert (name, "a link that leaves the checkpoint's folder") in made.left_out
    write(made, tmp_path / "converted")
    assert all(SECRET.encode() not in path.read_bytes() for path in (tmp_path / "converted").iterdir())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe has no end, and /dev/zero has no last byte."""
    draft, target = pair(tmp_path)
    path = draft / name
    path.unlink(missing_ok=True)
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path.name),
        "folder": path.mkdir,
    }[kind]()
    if name == INDEX and kind == "loop":
        pytest.skip("a link to nothing is no index")
    assert read_everything(draft, target, tmp_path / "converted")


def test_another_file_of_the_folder_is_no_shard(tmp_path: Path) -> None:
    draft, _ = pair(tmp_path)
    (draft / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": "config.json"}}))
    with pytest.raises(CheckpointError, match="asked for [*].safetensors files, found .'config.json'"):
        read_tensors(draft)
