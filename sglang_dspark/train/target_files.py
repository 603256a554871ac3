"""The trainable target to and from a checkpoint folder with SGLang's tensor names, strictly both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from sglang_dspark.checkpoints import read_config
from sglang_dspark.train.target_model import TextModel

# The stacked experts here, and what the checkpoint calls the parts of one expert.
_EXPERT_PARTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_STACKED = re.compile(r"(.*\.block_sparse_moe)\.experts\.(gate_proj|up_proj|down_proj)\.weight")
# M3 keeps the routing bias in float32 whatever the weights are in.
_FLOAT32 = "e_score_correction_bias"

Tensors = dict[str, torch.Tensor]


class TargetMismatch(ValueError):
    """A target's files are not what its config asks for."""


def checkpoint_tensors(model: TextModel, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """Every tensor under its checkpoint name, in `dtype`."""
    named: Tensors = {}
    for name, tensor in model.state_dict().items():
        full = name if name.startswith("lm_head.") else f"model.{name}"
        stacked = _STACKED.fullmatch(full)
        if stacked is None:
            named[full] = tensor
            continue
        prefix, part = stacked.groups()
        count = model.config["num_local_experts"]
        for expert, piece in enumerate(tensor.chunk(count, dim=1 if part == "down_proj" else 0)):
            named[f"{prefix}.experts.{expert}.{_EXPERT_PARTS[part]}.weight"] = piece
    return {
        name: tensor.detach().to(torch.float32 if name.endswith(_FLOAT32) else dtype).contiguous().clone()
        for name, tensor in named.items()
    }


def load_checkpoint_tensors(model: TextModel, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Fill the model, in its own dtype.

    Raises:
        TargetMismatch: tensors are missing, unexpected or misshapen; all are named.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in checkpoint_tensors(model).items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    problems = [f"tensor {name}: missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"tensor {name}: unexpected" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"tensor {name}: asked for shape {list(expected[name])}, found {list(found[name])}"
        for name in sorted(expected.keys() & found.keys())
        if expected[name] != found[name]
    ]
    if problems:
        raise TargetMismatch(
            f"the target {where} cannot be read; is it a MiniMax-M3 text model?\n  - " + "\n  - ".join(problems)
        )
    state = {}
    for name in model.state_dict():
        full = name if name.startswith("lm_head.") else f"model.{name}"
        stacked = _STACKED.fullmatch(full)
        if stacked is None:
            state[name] = tensors[full].float()
            continue
        prefix, part = stacked.groups()
        pieces = [
            tensors[f"{prefix}.experts.{expert}.{_EXPERT_PARTS[part]}.weight"].float()
            for expert in range(model.config["num_local_experts"])
        ]
        state[name] = torch.cat(pieces, dim=1 if part == "down_proj" else 0)
    model.load_state_dict(state)


def load_text_model(folder: Path) -> TextModel:
    """The target in `folder`, in float32, for evaluation.

    Raises:
        TargetMismatch: its tensors do not fit its config.
    """
    config: dict[str, Any] = read_config(folder)
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    model = TextModel(config)
    load_checkpoint_tensors(model, tensors, str(folder))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    module: nn.Module = model.eval()
    return module  # type: ignore[return-value]
