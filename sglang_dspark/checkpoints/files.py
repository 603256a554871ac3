"""What lies in a draft's folder: its config and the names and shapes of its tensors, without loading any weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.tensors import Shape

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The draft's `config.json` as a table.

    Raises:
        CheckpointError: the folder or the file is missing, or the file is not a JSON object.
    """
    where = str(folder)
    if not folder.is_dir():
        raise CheckpointError(where, ["asked for a draft checkpoint folder, found no such folder; check the path"])
    return _read_json(folder / CONFIG_NAME, where)


def read_tensor_shapes(folder: Path) -> dict[str, Shape]:
    """Name -> shape of every tensor in the folder's safetensors files, read from their headers.

    With an index, exactly the files it names are read, and each must hold the tensors the index says.

    Raises:
        CheckpointError: no safetensors file, a damaged or missing one, a tensor stored twice, or an index that
            points outside the folder.
    """
    where = str(folder)
    index = _read_index(folder, where)
    names = sorted(set(index.values())) if index else sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise CheckpointError(where, ["asked for *.safetensors files, found none; save the draft as safetensors"])
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise CheckpointError(where, [f"{INDEX_NAME} names files outside the checkpoint: {outside}"])
    shapes: dict[str, Shape] = {}
    problems: list[str] = []
    for name in names:
        try:
            with safe_open(folder / name, framework="np") as file:
                for key in file.keys():
                    if key in shapes:
                        problems.append(f"tensor {key}: found twice, the second time in {name}")
                    shapes[key] = tuple(file.get_slice(key).get_shape())
        except (OSError, SafetensorError) as error:
            problems.append(f"{name}: cannot be read ({error}); copy or download it again")
    if index:
        problems += [f"tensor {key}: named in {INDEX_NAME}, found in no file" for key in index if key not in shapes]
    if problems:
        raise CheckpointError(where, problems)
    return shapes


def _read_index(folder: Path, where: str) -> dict[str, str]:
    """Tensor -> file of the folder's index; empty where there is none."""
    if not (folder / INDEX_NAME).exists():
        return {}
    found = _read_json(folder / INDEX_NAME, where).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        problem = f"{INDEX_NAME}: asked for a weight_map of tensor names to file names, found none; save it again"
        raise CheckpointError(where, [problem])
    return found


def _read_json(path: Path, where: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(where, [f"asked for {path.name}, found no such file; check the path"]) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(where, [f"{path.name} cannot be read: {error}"]) from error
    if not isinstance(content, dict):
        raise CheckpointError(where, [f"{path.name}: asked for a JSON object, found {type(content).__name__}"])
    return content
