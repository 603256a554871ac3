"""The sizes of a target and its draft, from MiniMax-M3's published configuration or from checkpoints' config.json.

Sources of the preset: the defaults of `MiniMaxM3VLTextConfig` in transformers 5.19, which are MiniMaxAI/MiniMax-M3's,
for widths, heads, experts and the index. That the first three layers have a dense MLP and full attention is what
public loaders of the checkpoint say (the configuration leaves it to the checkpoint). The draft's depth, rank and block
are the released drafts'. Two sizes of a draft are assumptions, and arguments of the command: its features (one for each
draft layer, as SGLang's `build_target_layer_ids` picks them) and its MLP width (`intermediate_size`, as AutoModel
exports it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints import parse_draft_config, read_config
from sglang_dspark.checkpoints.config import flatten


@dataclass(frozen=True)
class TargetSizes:
    """A target, whole, in elements; ``dense_layers`` have no experts, ``full_layers`` no block-sparse attention."""

    name: str
    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    dense_layers: int
    dense_width: int
    experts: int
    experts_a_token: int
    expert_width: int
    shared_width: int
    full_layers: int
    index_heads: int
    index_dim: int
    block_tokens: int
    top_blocks: int

    def parameters(self) -> int:
        """Every weight of the language model but norms and biases, for a check against the published count."""
        attention = self.hidden * self.head_dim * 2 * (self.query_heads + self.kv_heads)
        index = self.hidden * self.index_dim * (self.index_heads + 1)
        dense = 3 * self.hidden * self.dense_width
        moe = 3 * self.hidden * (self.experts * self.expert_width + self.shared_width) + self.hidden * self.experts
        return (
            self.layers * attention
            + (self.layers - self.full_layers) * index
            + self.dense_layers * dense
            + (self.layers - self.dense_layers) * moe
            + 2 * self.vocabulary * self.hidden
        )


@dataclass(frozen=True)
class DraftSizes:
    """A draft; hidden size, heads and vocabulary are the target's. ``gamma`` tokens are proposed at a time."""

    layers: int
    features: int
    mlp_width: int
    markov_rank: int
    gamma: int


MINIMAX_M3 = TargetSizes(
    name="MiniMax-M3",
    hidden=6144,
    layers=60,
    query_heads=64,
    kv_heads=4,
    head_dim=128,
    vocabulary=200064,
    dense_layers=3,
    dense_width=12288,
    experts=128,
    experts_a_token=4,
    expert_width=3072,
    shared_width=3072,
    full_layers=3,
    index_heads=4,
    index_dim=128,
    block_tokens=128,
    top_blocks=16,
)
MINIMAX_M3_DRAFT = DraftSizes(layers=5, features=5, mlp_width=3072, markov_rank=256, gamma=7)


def read_target(folder: Path) -> TargetSizes:
    """The sizes of a checkpoint of MiniMax-M3's architecture.

    Raises:
        ValueError: there is no readable config.json, or a key is missing, by name.
    """
    text = flatten(read_config(folder, "target"))
    sparse: Mapping[str, Any] = text.get("sparse_attention_config") or {}
    try:
        layers = int(text["num_hidden_layers"])
        moe, attention = text.get("moe_layer_freq"), sparse.get("sparse_attention_freq")
        return TargetSizes(
            name=folder.name,
            hidden=int(text["hidden_size"]),
            layers=layers,
            query_heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            head_dim=int(text["head_dim"]),
            vocabulary=int(text["vocab_size"]),
            dense_layers=0 if moe is None else sum(not flag for flag in moe),
            dense_width=int(text["dense_intermediate_size"]),
            experts=int(text["num_local_experts"]),
            experts_a_token=int(text["num_experts_per_tok"]),
            expert_width=int(text["intermediate_size"]),
            shared_width=int(text["intermediate_size"]) * int(text.get("n_shared_experts") or 0),
            full_layers=layers if not attention else sum(not flag for flag in attention),
            index_heads=int(sparse.get("sparse_num_index_heads", 0)),
            index_dim=int(sparse.get("sparse_index_dim", 0)),
            block_tokens=int(sparse.get("sparse_block_size", 1)),
            top_blocks=int(sparse.get("sparse_topk_blocks", 0)),
        )
    except KeyError as missing:
        raise ValueError(
            f"{folder / 'config.json'}: expected the key {missing} of a MiniMax-M3 configuration, found none"
        ) from None


def read_draft(folder: Path) -> DraftSizes:
    """The sizes of a draft's checkpoint, in either layout."""
    config = parse_draft_config(read_config(folder), str(folder / "config.json"))
    return DraftSizes(
        config.num_layers, len(config.target_layer_ids), config.mlp_width, config.markov_rank, config.block_size
    )
