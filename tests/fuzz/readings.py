"""What an accepted config must have meant, read once more and independently: no default but the documented ones.

`checkpoints.config` is held to this: a mutated value that is accepted must be the value that is served.
"""

from __future__ import annotations

import math
from typing import Any

from sglang_dspark.checkpoints import DraftConfig, Layout

Table = dict[str, Any]


def unlike(raw: Table, config: DraftConfig) -> list[str]:
    """The fields of a parsed config that are not what the file says, in type or in value."""
    said = _automodel(raw) if config.layout is Layout.AUTOMODEL else _released(raw)
    found = {name: getattr(config, name) for name in said}
    return [
        f"{name}: the file says {said[name]!r}, read as {found[name]!r}"
        for name in said
        if type(said[name]) is not type(found[name]) or said[name] != found[name]
    ]


def _automodel(raw: Table) -> Table:
    return _shared(raw) | {
        "num_layers": raw["num_hidden_layers"],
        "num_target_layers": raw["num_target_layers"],
        "target_layer_ids": tuple(raw["target_layer_ids"]),
        "mlp_width": raw["intermediate_size"],
        "block_size": raw["block_size"],
        "mask_token_id": raw["mask_token_id"],
        "markov_rank": raw["markov_rank"],
        "markov_head_type": raw["markov_head_type"].lower(),
    }


def _released(raw: Table) -> Table:
    flat = {**raw, **(raw.get("text_config") or {})}
    flat |= {key: value for key, value in raw.items() if key.startswith("dspark_")}
    inner = flat.get("dspark_config", {})
    return _shared(flat) | {
        "num_layers": flat["dflash_config"]["num_hidden_layers"],
        "num_target_layers": flat["dflash_config"]["num_target_layers"],
        "target_layer_ids": tuple(flat["dflash_config"]["target_layer_ids"]),
        "mlp_width": inner["ffn_hidden_size"] if "ffn_hidden_size" in inner else flat["dspark_ffn_hidden_size"],
        "block_size": flat["dspark_block_size"],
        "mask_token_id": flat["dspark_noise_token_id"],
        "markov_rank": flat["dspark_markov_rank"],
        "markov_head_type": flat.get("dspark_markov_head_type", "vanilla").lower(),
    }


def _shared(flat: Table) -> Table:
    rope = flat.get("rope_parameters") or {}
    theta = rope["rope_theta"] if "rope_theta" in rope else flat["rope_theta"]
    eps = flat["rms_norm_eps"]
    assert all(type(number) in (int, float) and math.isfinite(number) for number in (theta, eps))
    assert type(flat["use_gemma_norm"]) is bool and flat["qk_norm_type"] == "per_head"
    assert flat.get("d2t") is None and flat.get("draft_vocab_size") in (None, flat["vocab_size"])
    assert flat.get("sample_from_anchor", True) is True
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rotary_dim", "vocab_size")
    return {name: flat[name] for name in (*names, "max_position_embeddings")} | {
        "rope_theta": float(theta),
        "rms_norm_eps": float(eps),
        "enable_confidence_head": flat.get("enable_confidence_head", True),
        "confidence_head_with_markov": flat.get("confidence_head_with_markov", True),
        "quantized": bool(flat.get("quantization_config")),
    }
