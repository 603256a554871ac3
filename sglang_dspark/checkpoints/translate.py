"""Config keys of layout A written as layout B.

SGLang knows the released layout (`sglang.srt.configs.minimax_vl.configure_minimax_m3_dspark`) and not AutoModel's, so
an AutoModel config is served as the released config of the same network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_dspark.checkpoints.config import Layout

# Says in a translated config which layout the files beside it are in.
SOURCE_LAYOUT_KEY = "dspark_source_layout"

# Copied from the target's text config, or written in the other form below; the dense draft has no use for them.
_LEFT_OUT = (
    "sparse_attention_config",
    "moe_layer_freq",
    "layer_types",
    "num_mtp_modules",
    "block_size",
    "mask_token_id",
    "markov_rank",
    "markov_head_type",
    "target_layer_ids",
    "num_target_layers",
    "num_hidden_layers",
    "intermediate_size",
    "dense_intermediate_size",
)


def released_config(automodel: Mapping[str, Any]) -> dict[str, Any]:
    """The released layout's config of a draft that AutoModel exported.

    Args:
        automodel: its `config.json`, already accepted by `parse_draft_config`.
    """
    kept = {key: value for key, value in automodel.items() if key not in _LEFT_OUT}
    depth, width = automodel["num_hidden_layers"], automodel["intermediate_size"]
    return kept | {
        "architectures": [Layout.RELEASED.value],
        SOURCE_LAYOUT_KEY: Layout.AUTOMODEL.value,
        "num_hidden_layers": depth,
        "hidden_act": "swigluoai",
        "dspark_block_size": automodel["block_size"],
        "dspark_noise_token_id": automodel["mask_token_id"],
        "dspark_markov_rank": automodel["markov_rank"],
        "dspark_markov_head_type": automodel["markov_head_type"],
        "dspark_ffn_hidden_size": width,
        "dspark_use_dense_ffn": True,
        "dspark_config": {"use_dense_ffn": True, "ffn_hidden_size": width},
        "dflash_config": {
            "num_hidden_layers": depth,
            "num_target_layers": automodel["num_target_layers"],
            "target_layer_ids": list(automodel["target_layer_ids"]),
        },
    }
