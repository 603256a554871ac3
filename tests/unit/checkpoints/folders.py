"""Small drafts and targets on disk, in every shape the converter and the lint meet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sglang_dspark.checkpoints import expected_shapes, parse_draft_config
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET, released_name

INDEX = "model.safetensors.index.json"

TARGET_CONFIG = {
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "model_type": "minimax_m3",
    "num_hidden_layers": 6,
    "hidden_size": 48,
    "vocab_size": 100,
    "rotary_dim": 8,
    "rope_theta": 5e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}


def canonical_tensors(raw: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Every tensor that is the draft's own, each filled with numbers of its own."""
    generator = torch.Generator().manual_seed(5)
    shapes = expected_shapes(parse_draft_config(raw, "x"))
    return {name: (torch.randn(s, generator=generator) * 0.3).to(dtype) for name, s in sorted(shapes.items())}


def tables(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """The target's embedding and LM head."""
    generator = torch.Generator().manual_seed(6)
    made = {name: torch.randn(100, 48, generator=generator).bfloat16() for name in SHARED_WITH_TARGET}
    return {name: table.to(dtype) for name, table in made.items()}


def save(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], files: int = 1) -> Path:
    """A checkpoint with its tokenizer, as transformers writes one."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "tokenizer.json").write_text('{"model": {}}')
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = dict(sorted(tensors.items())[i::files])
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def save_draft(folder: Path, raw: dict[str, Any], dtype: torch.dtype = torch.bfloat16, files: int = 1) -> Path:
    """A draft in the layout of its config."""
    tensors = canonical_tensors(raw, dtype)
    if raw["architectures"] == ["DSparkMiniMaxDraftModel"]:
        tensors = {released_name(name): tensor for name, tensor in tensors.items()}
    else:
        tensors |= tables(dtype)
    return save(folder, raw, tensors, files)


def save_target(folder: Path, names: str = "text", dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
    """A target with little more than its two tables; `names`: text, minimax or transformers."""
    prefixes = {
        "text": ("model.", ""),
        "minimax": ("language_model.model.", "language_model."),
        "transformers": ("model.language_model.", ""),
    }[names]
    made = {prefix + name: table for prefix, (name, table) in zip(prefixes, tables(dtype).items(), strict=True)} | {
        prefixes[0] + "norm.weight": torch.zeros(48)
    }
    config = {key: value for key, value in {**TARGET_CONFIG, **changes}.items() if value is not None}
    if names != "text":
        text = {key: value for key, value in config.items() if key != "architectures"}
        config = {
            "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "model_type": "minimax_m3_vl",
            "text_config": text,
            "vision_config": {"hidden_size": 7},
        }
    return save(folder, config, made, files=2)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
