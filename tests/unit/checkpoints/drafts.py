"""One small draft in both layouts: what AutoModel exports and what MiniMax released, written by hand from both formats.

No size equals another, so that a key read in another one's place cannot go unseen.
"""

from __future__ import annotations

import copy
from typing import Any

from sglang_dspark.checkpoints import TargetFacts

TARGET = TargetFacts(num_layers=6, hidden_size=48, vocab_size=100)

# What both layouts keep of the target's text config; the draft is dense whatever the copied fields say.
_TEXT = {
    "model_type": "minimax_m3",
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "rope_theta": 5e6,
    "rms_norm_eps": 1e-6,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "use_gemma_norm": True,
    "qk_norm_type": "per_head",
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "dense_intermediate_size": 80,
    "sparse_attention_config": {"sparse_topk_blocks": 4},
    "moe_layer_freq": [0, 1, 1, 1, 1, 1],
}

_AUTOMODEL = {
    "architectures": ["MiniMaxM3DSparkModel"],
    "hidden_act": "silu",
    "num_hidden_layers": 2,
    "num_target_layers": 6,
    "target_model_type": "minimax_m3",
    "intermediate_size": 64,
    "block_size": 7,
    "mask_token_id": 99,
    "target_layer_ids": [1, 3, 4],
    "num_anchors": 512,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "markov_rank": 12,
    "markov_head_type": "vanilla",
}

_RELEASED = {
    "architectures": ["DSparkMiniMaxDraftModel"],
    "hidden_act": "swigluoai",
    "swiglu_beta": 1.0,
    "num_hidden_layers": 6,
    "intermediate_size": 72,
    "dspark_block_size": 7,
    "dspark_markov_rank": 12,
    "dspark_markov_head_type": "vanilla",
    "dspark_noise_token_id": 99,
    "dspark_ffn_hidden_size": 64,
    "dspark_use_dense_ffn": True,
    "dspark_config": {"use_dense_ffn": True, "ffn_hidden_size": 64},
    "dflash_config": {"num_target_layers": 6, "num_hidden_layers": 2, "target_layer_ids": [1, 3, 4], "causal": False},
}

REMOVED = object()


def automodel(**changes: Any) -> dict[str, Any]:
    """Layout A's config.json with some keys changed, or left out where the value is REMOVED."""
    return _changed({**_TEXT, **_AUTOMODEL}, changes)


def released(**changes: Any) -> dict[str, Any]:
    """Layout B's config.json; `dflash_config` and `dspark_config` changes are merged into those tables."""
    return _changed({**_TEXT, **_RELEASED}, changes)


def _changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            value = {name: inner for name, inner in (config[key] | value).items() if inner is not REMOVED}
        config[key] = value
    return {key: value for key, value in config.items() if value is not REMOVED}
