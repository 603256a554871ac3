"""A draft inside its target's own files, taken out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints import Layout, parse_draft_config, read_config
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.checkpoints.tensors import released_name
from tests.unit.checkpoints.drafts import released
from tests.unit.checkpoints.folders import INDEX, canonical_tensors, save_target, tables

A, B = Layout.AUTOMODEL, Layout.RELEASED


def convert_to(layout: Layout, source: Path, destination: Path, target: Path | None = None, **options: Any) -> Path:
    write(plan(source, layout, target), destination, **options)
    return destination


def bundled(folder: Path, wrapped: bool = True) -> Path:
    """A target in whose own shards a draft lies."""
    target = save_target(folder, "minimax" if wrapped else "text")
    keys = {k: v for k, v in released().items() if k not in ("architectures", "num_hidden_layers", "model_type")}
    config = read_config(target)
    draft = {key: keys.pop(key) for key in list(keys) if key.startswith("dspark_")}
    config |= draft
    (config["text_config"] if wrapped else config).update(keys)
    (target / "config.json").write_text(json.dumps(config))
    tensors = {
        released_name(name).removeprefix("language_model."): tensor
        for name, tensor in canonical_tensors(released()).items()
    }
    index = json.loads((target / INDEX).read_text())
    save_file(tensors, target / "dspark.safetensors", metadata={"format": "pt"})
    index["weight_map"] |= dict.fromkeys(tensors, "dspark.safetensors")
    (target / INDEX).write_text(json.dumps(index))
    return target


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_draft_inside_its_target_comes_out(tmp_path: Path, wrapped: bool) -> None:
    """The target's own tensors stay where they are; one of them among the draft's would be refused by every loader."""
    b = convert_to(B, bundled(tmp_path / "target", wrapped), tmp_path / "b")
    made = load_file(b / "model.safetensors")
    expected = {released_name(name): tensor for name, tensor in canonical_tensors(released()).items()}
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) for name in made)
    config = read_config(b)
    assert config["model_type"] == "minimax_m3" and not {"text_config", "vision_config"} & config.keys()
    assert parse_draft_config(config, "x") == parse_draft_config(released(), "x")


def test_a_draft_inside_its_target_in_automodels_layout(tmp_path: Path) -> None:
    """It is its own --target."""
    a = convert_to(A, bundled(tmp_path / "target"), tmp_path / "a")
    made = load_file(a / "model.safetensors")
    assert all(torch.equal(made[name], table) for name, table in tables().items())
    assert parse_draft_config(read_config(a), "x").layout is A
