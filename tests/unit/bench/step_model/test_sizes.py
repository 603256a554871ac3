"""Sizes from configurations: transformers' own of MiniMax-M3, and the demo pair's."""

from __future__ import annotations

import json

import pytest

from sglang_dspark.bench.step_model import sizes
from sglang_dspark.demo import DemoSpec, build


def test_the_preset_is_transformers_default():
    """Its defaults are those of MiniMaxAI/MiniMax-M3; the first layers are the checkpoint's own."""
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig as Config

    config, ours = Config(), sizes.MINIMAX_M3
    assert (ours.hidden, ours.layers, ours.vocabulary) == (
        config.hidden_size, config.num_hidden_layers, config.vocab_size,
    )  # fmt: skip
    assert (ours.query_heads, ours.kv_heads, ours.head_dim) == (
        config.num_attention_heads, config.num_key_value_heads, config.head_dim,
    )  # fmt: skip
    assert (ours.experts, ours.experts_a_token, ours.expert_width, ours.shared_width, ours.dense_width) == (
        config.num_local_experts, config.num_experts_per_tok, config.intermediate_size, config.shared_intermediate_size,
        config.dense_intermediate_size,
    )  # fmt: skip
    assert (ours.index_heads, ours.index_dim, ours.block_tokens, ours.top_blocks) == (
        config.index_n_heads, config.index_head_dim, config.index_block_size, config.index_topk_blocks,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["automodel", "released"])
def test_of_checkpoints(tmp_path, layout):
    spec = DemoSpec.text()
    pair = build(tmp_path, layout=layout, spec=spec)
    target, draft = sizes.read_target(pair.target), sizes.read_draft(pair.draft)
    assert (target.name, target.hidden, target.layers) == ("target", spec.hidden_size, len(spec.moe_layers))
    assert target.dense_layers == spec.moe_layers.count(0) and target.full_layers == spec.sparse_layers.count(0)
    assert (target.experts, target.expert_width, target.dense_width) == (
        spec.num_local_experts, spec.intermediate_size, spec.dense_intermediate_size,
    )  # fmt: skip
    assert draft == sizes.DraftSizes(
        spec.draft_layers, len(spec.target_layer_ids), spec.draft_intermediate_size, spec.markov_rank, spec.block_size
    )


def test_a_missing_key_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="config.json: expected the key 'hidden_size' of a MiniMax-M3 configuration"):
        sizes.read_target(tmp_path)
