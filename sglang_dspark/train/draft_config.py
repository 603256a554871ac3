"""The config.json of a new draft, in AutoModel's layout: the target's own keys with the draft's beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What every MiniMax-M3 draft is, for a target of another family whose config does not say.
_OF_EVERY_DRAFT: Mapping[str, Any] = {
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_head",
    "hidden_act": "swigluoai",
    "swiglu_alpha": 1.702,
    "swiglu_beta": 1.0,
    "swiglu_limit": 7.0,
}


@dataclass(frozen=True)
class DraftChoices:
    """What one decides about a draft; the rest follows from its target."""

    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    layers: int = 2
    block_size: int = 7
    mlp_width: int = 0  # 0: twice the hidden size
    markov_rank: int = 64
    markov_head_type: str = "vanilla"
    num_anchors: int = 32


def spread_layers(depth: int, count: int = 3) -> tuple[int, ...]:
    """Target layers to read, evenly spread and without the last one, whose output has two meanings."""
    if depth < 2:
        raise ValueError(f"asked for features of a target with {depth} layers: take one with at least 2")
    count = min(count, depth - 1)
    return tuple(
        sorted({round(i * (depth - 2) / max(1, count - 1)) for i in range(count)} if count > 1 else {depth - 2})
    )


def new_draft_config(target: Mapping[str, Any], choices: DraftChoices) -> dict[str, Any]:
    """The table; `reference.MiniMaxM3DSparkModel` checks it when it reads it."""
    hidden = int(target["hidden_size"])
    rope = target.get("rope_parameters") or {}
    head_dim = target.get("head_dim") or hidden // int(target["num_attention_heads"])
    derived = {
        "head_dim": head_dim,
        "rope_theta": rope.get("rope_theta", target.get("rope_theta")),
        "rotary_dim": target.get("rotary_dim") or int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    own = {key: target.get(key, value) for key, value in _OF_EVERY_DRAFT.items()}
    # transformers writes its own name for the same activation, and drops the keys that its classes fix.
    return {**target, **derived, **own, "hidden_act": "swigluoai", **_draft_keys(target, choices, hidden)}


def _draft_keys(target: Mapping[str, Any], choices: DraftChoices, hidden: int) -> dict[str, Any]:
    return {
        "architectures": ["MiniMaxM3DSparkModel"],
        "num_hidden_layers": choices.layers,
        "num_target_layers": int(target["num_hidden_layers"]),
        "target_model_type": target.get("model_type"),
        "intermediate_size": choices.mlp_width or 2 * hidden,
        "block_size": choices.block_size,
        "mask_token_id": choices.mask_token_id,
        "target_layer_ids": list(choices.target_layer_ids),
        "num_anchors": choices.num_anchors,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "markov_rank": choices.markov_rank,
        "markov_head_type": choices.markov_head_type,
        "tie_word_embeddings": False,
    }
