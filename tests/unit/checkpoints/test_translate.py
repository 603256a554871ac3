"""An AutoModel config written as the released one: the same network, to us and to SGLang's own reader."""

from __future__ import annotations

import dataclasses

import pytest
from sglang.srt.configs.minimax_vl import configure_minimax_m3_dspark

from sglang_dspark.checkpoints import Layout, parse_draft_config
from sglang_dspark.checkpoints.translate import SOURCE_LAYOUT_KEY, released_config
from sglang_dspark.serving.hf_config import MiniMaxM3Config
from tests.unit.checkpoints.drafts import REMOVED, automodel

VARIANTS = {
    "plain": {},
    "other numbers": {"block_size": 3, "mask_token_id": 7, "target_layer_ids": [0, 2], "num_hidden_layers": 1},
    "rnn without confidence": {"markov_head_type": "rnn", "enable_confidence_head": False},
    "confidence without markov": {"confidence_head_with_markov": False},
    "rope parameters": {"rope_theta": REMOVED, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    "layer types": {"layer_types": ["full_attention"] * 2},
    "quantised": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_translated_config_is_the_same_draft(changes: dict[str, object]) -> None:
    """A key dropped or crossed in translation serves another network than the one that was checked."""
    raw = automodel(**changes)
    translated = parse_draft_config(released_config(raw), "x")
    assert translated.layout is Layout.RELEASED
    assert dataclasses.replace(translated, layout=Layout.AUTOMODEL) == parse_draft_config(raw, "x")
    assert released_config(raw)[SOURCE_LAYOUT_KEY] == Layout.AUTOMODEL.value


def test_the_mlp_width_is_the_same_in_both_places() -> None:
    """Readers differ in which of the two keys they take."""
    translated = released_config(automodel())
    assert translated["dspark_ffn_hidden_size"] == translated["dspark_config"]["ffn_hidden_size"] == 64


def test_the_original_is_left_alone() -> None:
    raw = automodel()
    released_config(raw)
    assert raw == automodel()


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_sglang_reads_the_translated_config(changes: dict[str, object]) -> None:
    """SGLang's reader takes other keys than ours: it must find the same draft, dense and with full attention."""
    raw = automodel(**changes)
    ours = parse_draft_config(raw, "x")
    theirs = configure_minimax_m3_dspark(MiniMaxM3Config(**raw))
    assert theirs.architectures == ["DSparkMiniMaxDraftModel"]
    assert theirs.num_hidden_layers == ours.num_layers
    assert theirs.dense_intermediate_size == ours.mlp_width
    assert theirs.block_size == ours.block_size
    assert theirs.mask_token_id == ours.mask_token_id
    assert theirs.markov_rank == ours.markov_rank
    assert theirs.markov_head_type == ours.markov_head_type
    assert tuple(theirs.dflash_config["target_layer_ids"]) == ours.target_layer_ids
    assert theirs.dflash_config["num_target_layers"] == ours.num_target_layers
    assert theirs.sparse_attention_config is None
    assert theirs.moe_layer_freq == [0] * ours.num_layers
    assert bool(theirs.quantization_config) == ours.quantized
    assert getattr(theirs, "enable_confidence_head", True) == ours.enable_confidence_head
    # What our draft model parses again, from SGLang's config.
    again = parse_draft_config(theirs.to_dict(), "x")
    assert dataclasses.replace(again, layout=Layout.AUTOMODEL) == ours
