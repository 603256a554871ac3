"""Reads a draft of either layout into the reference model, and writes layout A, the layout AutoModel writes.

Strict both ways: a tensor that is missing, unexpected or misshapen is an error before the model changes, and a saved
folder appears by one rename, so nobody ever reads half of one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sglang_dspark.checkpoints import CheckpointError, Layout, canonical_name, read_config, read_tensor_shapes
from sglang_dspark.checkpoints.files import CONFIG_NAME, INDEX_NAME
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET, account
from sglang_dspark.checkpoints.translate import to_automodel
from sglang_dspark.reference.config import ReferenceConfig, read_reference_config
from sglang_dspark.reference.model import MiniMaxM3DSparkModel

WEIGHTS_NAME = "model.safetensors"


def from_checkpoint(
    folder: Path | str,
    target_tables: Mapping[str, torch.Tensor] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    attention: str = "auto",
) -> MiniMaxM3DSparkModel:
    """The draft in `folder`, in evaluation mode, its two tables frozen.

    Args:
        folder: a checkpoint in AutoModel's or the released layout.
        target_tables: the target's "embed_tokens.weight" and "lm_head.weight", [V, H] each. The released layout has
            none of its own; where the checkpoint has, these take their place.
        dtype: of the weights.
        attention: see `MiniMaxM3DSparkModel`.

    Raises:
        CheckpointError: everything that is wrong with config, tensors or tables.
    """
    folder = Path(folder)
    config = read_reference_config(read_config(folder), str(folder))
    shapes = read_tensor_shapes(folder)
    tables = dict(target_tables or {})
    problems = account(config.draft, shapes) + _table_problems(config, shapes.keys() | tables.keys(), tables)
    if config.draft.quantized:
        problems.append("quantization_config: the reference reads plain weights only; pass the unquantised draft")
    if problems:
        raise CheckpointError(str(folder), problems)
    with torch.device("meta"):
        model = MiniMaxM3DSparkModel(config, attention)
    tensors = dict(_read_tensors(folder, config.draft.layout)) | tables
    model.to_empty(device="cpu").to(dtype)
    model.load_state_dict(tensors, strict=True)
    model.set_embedding_head_trainable(False)
    return model.eval()


def save_checkpoint(model: MiniMaxM3DSparkModel, folder: Path | str) -> None:
    """Write the draft in layout A: `config.json` and `model.safetensors`, in the weights' own dtype.

    An existing folder is replaced whole, once the new one is written.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh = work / "fresh"
        fresh.mkdir()
        config = automodel_table(model.config, model.fc.weight.dtype)
        (fresh / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        save_file(tensors, fresh / WEIGHTS_NAME, metadata={"format": "pt"})
        if folder.exists():
            folder.rename(work / "replaced")
        fresh.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def automodel_table(config: ReferenceConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The `config.json` that AutoModel would write for this draft, with the type of its weights."""
    table = dict(config.table)
    if config.draft.layout is Layout.RELEASED:
        table = to_automodel(table, target_model_type=str(table.get("model_type"))).config
    # transformers 5 calls it `dtype`; one name, so that the two cannot disagree.
    table.pop("dtype", None)
    return table | {"torch_dtype": str(dtype).removeprefix("torch.")}


def _table_problems(config: ReferenceConfig, found: set[str], tables: Mapping[str, torch.Tensor]) -> list[str]:
    shape = (config.draft.vocab_size, config.draft.hidden_size)
    problems = [
        f"tensor {name}: the checkpoint has none, as the released layout never does; pass the target's in target_tables"
        for name in SHARED_WITH_TARGET
        if name not in found
    ]
    for name, tensor in tables.items():
        if name not in SHARED_WITH_TARGET:
            problems.append(f"target_tables[{name!r}]: asked for {' and '.join(SHARED_WITH_TARGET)} only")
        elif tuple(tensor.shape) != shape:
            problems.append(f"target_tables[{name!r}]: asked for shape {list(shape)}, found {list(tensor.shape)}")
    return problems


def _read_tensors(folder: Path, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor by its canonical name. Files, names and shapes were accounted for before."""
    names = {path.name for path in folder.glob("*.safetensors")}
    if (folder / INDEX_NAME).exists():
        names = set(json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))["weight_map"].values())
    for file_name in sorted(names):
        with safe_open(folder / file_name, framework="pt") as file:
            for raw_name in file.keys():
                name = canonical_name(raw_name, layout)
                if name is not None:
                    yield name, file.get_tensor(raw_name)
