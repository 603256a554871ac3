"""What lies in a draft's folder, read from headers alone; every kind of damage is an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sglang_dspark.checkpoints import CheckpointError, read_config, read_tensor_shapes

INDEX = "model.safetensors.index.json"


def save(folder: Path, name: str, **shapes: tuple[int, ...]) -> Path:
    save_file({key: torch.zeros(shape) for key, shape in shapes.items()}, folder / name)
    return folder / name


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def problems(read, folder: Path) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as refusal:
        read(folder)
    assert str(folder) in str(refusal.value)
    return refusal.value.problems


# --- config.json -----------------------------------------------------------------------------------------------------


def test_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "minimax_m3"}')
    assert read_config(tmp_path) == {"model_type": "minimax_m3"}


def test_folder_is_missing(tmp_path: Path) -> None:
    """A mistyped path must not look like a folder without a config."""
    (problem,) = problems(read_config, tmp_path / "nowhere")
    assert "no such folder" in problem and "check the path" in problem


def test_config_is_missing(tmp_path: Path) -> None:
    (problem,) = problems(read_config, tmp_path)
    assert problem.startswith("asked for config.json, found no such file")


@pytest.mark.parametrize("text", ["{", "", "\x00", "not json"])
def test_config_is_not_json(tmp_path: Path, text: str) -> None:
    """A half-copied file; the JSON error alone would not say which."""
    (tmp_path / "config.json").write_text(text)
    (problem,) = problems(read_config, tmp_path)
    assert problem.startswith("config.json cannot be read: ")


def test_config_is_not_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are a UnicodeDecodeError, not a JSON error."""
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    (problem,) = problems(read_config, tmp_path)
    assert problem.startswith("config.json cannot be read: ")


@pytest.mark.parametrize(("text", "kind"), [("[1]", "list"), ("3", "int"), ("null", "NoneType")])
def test_config_is_not_an_object(tmp_path: Path, text: str, kind: str) -> None:
    """Later code would fail on `.get` with an AttributeError."""
    (tmp_path / "config.json").write_text(text)
    assert problems(read_config, tmp_path) == (f"config.json: asked for a JSON object, found {kind}",)


# --- safetensors -----------------------------------------------------------------------------------------------------


def test_shapes_of_all_files(tmp_path: Path) -> None:
    save(tmp_path, "model-1.safetensors", a=(2, 3))
    save(tmp_path, "model-2.safetensors", b=(4,))
    assert read_tensor_shapes(tmp_path) == {"a": (2, 3), "b": (4,)}


def test_the_index_says_which_files_are_read(tmp_path: Path) -> None:
    """A file left behind by an earlier save is not part of the checkpoint."""
    save(tmp_path, "model-1.safetensors", a=(2, 3))
    save(tmp_path, "old.safetensors", a=(9,), c=(1,))
    write_index(tmp_path, {"a": "model-1.safetensors"})
    assert read_tensor_shapes(tmp_path) == {"a": (2, 3)}


def test_no_safetensors(tmp_path: Path) -> None:
    """A .bin checkpoint would otherwise be one in which every tensor is missing."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    (problem,) = problems(read_tensor_shapes, tmp_path)
    assert "found none" in problem and "save the draft as safetensors" in problem


def test_damaged_files_are_all_named(tmp_path: Path) -> None:
    """An interrupted download; both files are named, not only the first."""
    whole = save(tmp_path, "model-1.safetensors", a=(64,))
    whole.write_bytes(whole.read_bytes()[:-10])
    (tmp_path / "model-2.safetensors").write_bytes(b"git lfs pointer")
    found = problems(read_tensor_shapes, tmp_path)
    assert [problem.split(":")[0] for problem in found] == ["model-1.safetensors", "model-2.safetensors"]
    assert all("copy or download it again" in problem for problem in found)


def test_index_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, "model-1.safetensors", a=(2,))
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    found = problems(read_tensor_shapes, tmp_path)
    assert any(problem.startswith("model-2.safetensors: cannot be read") for problem in found)


def test_index_names_a_tensor_that_is_in_no_file(tmp_path: Path) -> None:
    """Files and index of two different saves."""
    save(tmp_path, "model-1.safetensors", a=(2,))
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-1.safetensors"})
    assert problems(read_tensor_shapes, tmp_path) == (f"tensor b: named in {INDEX}, found in no file",)


@pytest.mark.parametrize("name", ["../secret.safetensors", "sub/model.safetensors", "/etc/passwd"])
def test_index_names_a_file_outside_the_folder(tmp_path: Path, name: str) -> None:
    """A checkpoint from the hub must not make the server open files elsewhere."""
    folder = tmp_path / "draft"
    folder.mkdir()
    save(tmp_path, "secret.safetensors", a=(2,))
    write_index(folder, {"a": name})
    (problem,) = problems(read_tensor_shapes, folder)
    assert "outside the checkpoint" in problem and name in problem


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    """Which copy is loaded would depend on the order of the files."""
    save(tmp_path, "model-1.safetensors", a=(2,))
    save(tmp_path, "model-2.safetensors", a=(2,))
    assert problems(read_tensor_shapes, tmp_path) == ("tensor a: found twice, the second time in model-2.safetensors",)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_index_is_damaged(tmp_path: Path, text: str) -> None:
    save(tmp_path, "model-1.safetensors", a=(2,))
    (tmp_path / INDEX).write_text(text)
    (problem,) = problems(read_tensor_shapes, tmp_path)
    assert problem.startswith(INDEX)


@pytest.mark.parametrize("weight_map", [None, [1], {"a": 3}, "x"])
def test_weight_map_is_no_map_of_names(tmp_path: Path, weight_map: object) -> None:
    """An AttributeError or TypeError out of the reader says nothing to whoever downloaded the draft."""
    save(tmp_path, "model-1.safetensors", a=(2,))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (problem,) = problems(read_tensor_shapes, tmp_path)
    assert problem.startswith(f"{INDEX}: asked for")
