"""What lies in a checkpoint's folder: its config and where its tensors are, without loading any weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.headers import DamagedFile, StoredTensor, read_header
from sglang_dspark.checkpoints.json_text import read_json
from sglang_dspark.checkpoints.keys import shown
from sglang_dspark.checkpoints.tensors import Shape

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SUFFIX = ".safetensors"
DRAFT = "DSpark draft"


@dataclass
class StoredTensors:
    """The tensors of a folder by name, and the metadata of its files."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


def read_config(folder: Path, subject: str = DRAFT, name: str = CONFIG_NAME) -> dict[str, Any]:
    """The checkpoint's `config.json`, or another JSON file, as a table.

    Raises:
        CheckpointError: the folder or the file is missing, or the file is not a JSON object.
    """
    if not folder.is_dir():
        problem = "asked for a checkpoint folder, found no such folder; check the path"
        raise CheckpointError(str(folder), [problem], subject)
    return _read_json(folder / name, subject)


def read_tensor_shapes(folder: Path) -> dict[str, Shape]:
    """Name -> shape of every tensor in the folder's safetensors files; as `read_tensors`, whose errors it raises."""
    return {name: tensor.shape for name, tensor in read_tensors(folder).tensors.items()}


def read_tensors(
    folder: Path, subject: str = DRAFT, wanted: Callable[[str], bool] = lambda name: True
) -> StoredTensors:
    """The tensors in the folder's safetensors files whose names are `wanted`, from the files' headers.

    With an index, exactly the files that it names for them are read, and each must hold the tensors the index says.

    Raises:
        CheckpointError: no safetensors file, a damaged or missing one, a tensor stored twice, or an index that
            points outside the folder.
    """
    where = str(folder)
    index = read_index(folder, subject)
    here = {key: name for key, name in index.items() if wanted(key)}
    names = sorted(set(here.values())) if index else sorted(path.name for path in folder.glob("*.safetensors"))
    if not names and not index:
        problem = f"asked for *.safetensors files, found none; save the {subject.split()[-1]} as safetensors"
        raise CheckpointError(where, [problem], subject)
    found = StoredTensors()
    problems: list[str] = []
    for name in names:
        try:
            header = read_header(folder / name)
        except (OSError, DamagedFile) as error:
            problems.append(f"{name}: cannot be read ({error}); copy or download it again")
            continue
        found.metadata = {**header.metadata, **found.metadata}
        for key, tensor in header.tensors.items():
            if key in found.tensors:
                problems.append(f"tensor {key}: found twice, the second time in {name}")
            elif wanted(key):
                found.tensors[key] = tensor
    problems += [f"tensor {key}: named in {INDEX_NAME}, found in no file" for key in here if key not in found.tensors]
    if problems:
        raise CheckpointError(where, problems, subject)
    return found


def read_index(folder: Path, subject: str = DRAFT) -> dict[str, str]:
    """Tensor -> file of the folder's index; empty where there is none.

    Raises:
        CheckpointError: it cannot be read, or names a file outside the folder.
    """
    if not (folder / INDEX_NAME).exists():
        return {}
    found = _read_json(folder / INDEX_NAME, subject).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        problem = f"{INDEX_NAME}: asked for a weight_map of tensor names to file names, found none; save it again"
        raise CheckpointError(str(folder), [problem], subject)
    if not found:
        problem = (
            f"{INDEX_NAME}: asked for a weight_map of tensor names to file names, found an empty one; save it again"
        )
        raise CheckpointError(str(folder), [problem], subject)
    outside = sorted({name for name in found.values() if not _is_file_name(name)})
    if outside:
        problem = f"{INDEX_NAME} names files outside the checkpoint: {shown(outside)}"
        raise CheckpointError(str(folder), [problem], subject)
    others = sorted({name for name in found.values() if not name.endswith(SUFFIX)})
    if others:
        problem = f"{INDEX_NAME}: asked for *{SUFFIX} files, found {shown(others)}; save the checkpoint as safetensors"
        raise CheckpointError(str(folder), [problem], subject)
    return found


def stays_inside(folder: Path, path: Path) -> bool:
    """Whether a file of the folder is really in it, links followed; the hub's cache keeps a snapshot's in `blobs`.

    Weights may be links to anywhere: whoever made the folder made them, and only what is a tensor of the draft is read.
    A file that is copied may not, or a folder from anyone could carry this user's own files away.
    """
    real, home = path.resolve(), folder.resolve()
    blobs = home.parents[1] / "blobs" if home.parent.name == "snapshots" else home
    return real.is_relative_to(home) or real.is_relative_to(blobs)


def _is_file_name(name: str) -> bool:
    """Whether it names something in the folder itself, whatever the system's rules of paths are."""
    return Path(name).name == name and name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def _read_json(path: Path, subject: str) -> dict[str, Any]:
    where = str(path.parent)
    try:
        content = read_json(path)
    except FileNotFoundError:
        problem = f"asked for {path.name}, found no such file; check the path"
        raise CheckpointError(where, [problem], subject) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(where, [f"{path.name} cannot be read: {error}"], subject) from error
    if not isinstance(content, dict):
        problem = f"{path.name}: asked for a JSON object, found {type(content).__name__}"
        raise CheckpointError(where, [problem], subject)
    return content
