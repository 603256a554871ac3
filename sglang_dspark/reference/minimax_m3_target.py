"""A MiniMax-M3 text checkpoint, named as SGLang loads it, as transformers' own `minimax_m3_vl` text model.

A second opinion on the target: another implementation of the same network. Names differ (`block_sparse_moe` is `mlp`,
`index_q_proj` is `indexer.q_proj`), gate and up are one matrix, and a layer's experts are stacked.

transformers' indexer knows local blocks that are always attended to, but no initial ones (`sparse_init_block`), so a
checkpoint with initial blocks is another network there. It is refused: its answers would be nearly right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ARCHITECTURE = "MiniMaxM3SparseForCausalLM"

# The published config says these in other words, or they are about the file and not the network.
_TRANSLATED_KEYS = ("architectures", "model_type", "rope_theta", "torch_dtype", "dtype", "transformers_version")


def load_minimax_m3(folder: Path | str, dtype: torch.dtype = torch.float32) -> Any:
    """The checkpoint as `MiniMaxM3VLForCausalLM`, in evaluation mode.

    Args:
        folder: `config.json` and safetensors of a `MiniMaxM3SparseForCausalLM`.
        dtype: of the weights.

    Raises:
        ValueError: another architecture, initial sparse blocks, or tensors that are missing or unexpected.
    """
    from transformers.models.minimax_m3_vl import MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig

    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    problems = config_problems(config)
    if problems:
        raise ValueError(f"The target {folder} cannot be loaded with transformers:\n  - " + "\n  - ".join(problems))
    settings = {key: value for key, value in config.items() if key not in _TRANSLATED_KEYS}
    settings["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": config["rope_theta"],
        "partial_rotary_factor": config["rotary_dim"] / config["head_dim"],
    }
    text_config = MiniMaxM3VLTextConfig(**settings)
    text_config._attn_implementation = "eager"
    model = MiniMaxM3VLForCausalLM(text_config).to(dtype).eval()
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    fit = model.load_state_dict(transformers_tensors(tensors), strict=False)
    problems = [f"tensor {name}: missing" for name in fit.missing_keys]
    problems += [f"tensor {name}: unexpected" for name in fit.unexpected_keys]
    if problems:
        raise ValueError(f"The target {folder} is incomplete or another network:\n  - " + "\n  - ".join(problems))
    return model


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """What keeps transformers' model from being this checkpoint's network; empty when nothing does."""
    problems = []
    if config.get("architectures") != [ARCHITECTURE]:
        problems.append(f"asked for architectures ['{ARCHITECTURE}'], found {config.get('architectures')}")
    if missing := [key for key in ("rope_theta", "rotary_dim", "head_dim") if key not in config]:
        problems.append(f"asked for {', '.join(missing)} in config.json, found nothing there")
    initial = (config.get("sparse_attention_config") or {}).get("sparse_init_block", 0)
    if initial:
        problems.append(
            f"sparse_init_block: transformers' minimax_m3_vl attends to no initial blocks, found {initial}; "
            "use a target with sparse_init_block 0, or another implementation behind the Target protocol"
        )
    return problems


def transformers_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors under transformers' names, gates and ups joined, experts stacked."""
    named = {_transformers_name(name): tensor for name, tensor in tensors.items()}
    for name in [name for name in named if name.endswith(".gate_proj.weight")]:
        mlp = name.removesuffix(".gate_proj.weight")
        if f"{mlp}.up_proj.weight" in named:
            parts = [named.pop(f"{mlp}.{part}_proj.weight") for part in ("gate", "up")]
            named[f"{mlp}.gate_up_proj.weight"] = torch.cat(parts)
    for experts, count in _expert_counts(named).items():
        gate, down, up = (
            [named.pop(f"{experts}.{expert}.{part}.weight") for expert in range(count)] for part in ("w1", "w2", "w3")
        )
        named[f"{experts}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
        named[f"{experts}.down_proj"] = torch.stack(down)
    return named


def _transformers_name(name: str) -> str:
    name = name.replace(".block_sparse_moe.e_score_correction_bias", ".mlp.gate.e_score_correction_bias")
    return name.replace(".block_sparse_moe.", ".mlp.").replace(".self_attn.index_", ".self_attn.indexer.")


def _expert_counts(names: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Experts by layer, where all three matrices of experts 0 to n - 1 are there; others stay, and are unexpected."""
    found: dict[str, set[tuple[int, str]]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(w[123])\.weight", name):
            found.setdefault(match[1], set()).add((int(match[2]), match[3]))
    counts = {experts: len(parts) // 3 for experts, parts in found.items()}
    return {
        experts: count
        for experts, count in counts.items()
        if found[experts] == {(expert, part) for expert in range(count) for part in ("w1", "w2", "w3")}
    }
