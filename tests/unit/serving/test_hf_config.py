"""The Hugging Face config of MiniMax-M3: a target's keys as they are, an AutoModel draft's as the released layout."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoConfig

from sglang_dspark.checkpoints import Layout
from sglang_dspark.serving import hf_config
from sglang_dspark.serving.hf_config import MiniMaxM3Config, source_layout
from tests.unit.checkpoints.drafts import automodel, released


def load(tmp_path: Path, raw: dict) -> object:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    hf_config.register()
    return AutoConfig.from_pretrained(tmp_path)


def test_a_target_keeps_its_keys(tmp_path: Path) -> None:
    """Translated, a target would lose its sparse layers and experts."""
    raw = automodel(architectures=["MiniMaxM3SparseForCausalLM"], num_hidden_layers=6)
    config = load(tmp_path, raw)
    assert isinstance(config, MiniMaxM3Config)
    assert config.moe_layer_freq == raw["moe_layer_freq"]
    assert config.sparse_attention_config == raw["sparse_attention_config"]
    assert (config.num_hidden_layers, config.intermediate_size) == (6, 64)


def test_an_automodel_draft_becomes_a_released_one(tmp_path: Path) -> None:
    """SGLang chooses the model class by the architecture and reads the released keys alone."""
    config = load(tmp_path, automodel())
    assert config.architectures == ["DSparkMiniMaxDraftModel"]
    assert config.dspark_block_size == 7
    assert config.num_hidden_layers == 2
    assert source_layout(config) is Layout.AUTOMODEL


def test_the_layout_of_the_files_survives_a_round_trip(tmp_path: Path) -> None:
    """SGLang copies configs through to_dict(); losing the mark, the loader would look for released names."""
    config = load(tmp_path, automodel())
    assert source_layout(MiniMaxM3Config(**config.to_dict())) is Layout.AUTOMODEL
    assert source_layout(load(tmp_path, released())) is Layout.RELEASED


def test_registering_twice_is_fine() -> None:
    """SGLang may load plugins more than once in a process; transformers may come to know the type itself."""
    hf_config.register()
    hf_config.register()
