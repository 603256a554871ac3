"""Both drafts with the same weights, and batches that reach every branch of the training forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from nemo_automodel.components.models.minimax_m3_vl.config import MiniMaxM3VLConfig
from nemo_automodel.components.speculative.dspark.config import build_minimax_m3_draft_config
from nemo_automodel.components.speculative.dspark.draft_minimax_m3 import MiniMaxM3DSparkModel as Peer

from sglang_dspark.reference import MiniMaxM3DSparkModel

HIDDEN, VOCAB, LAYERS = 48, 61, (0, 2, 3)

# What a run of AutoModel's recipe chooses; the rest comes from the target's config.
ARGUMENTS = {
    "num_draft_layers": 2,
    "target_layer_ids": list(LAYERS),
    "confidence_head_alpha": 1.0,
    "confidence_head_with_markov": True,
    "markov_rank": 10,
    "markov_head_type": "vanilla",
    "block_size": 5,
    "mask_token_id": VOCAB - 1,
    "num_anchors": 6,
}
TEXT = {
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "dense_intermediate_size": 72,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "moe_layer_freq": [0, 1, 1, 1, 1, 1],
    "sparse_attention_config": {"sparse_topk_blocks": 4},
}


class Arguments(dict):
    __getattr__ = dict.__getitem__


def peer_config(**changes: Any) -> Any:
    """The draft config that AutoModel itself builds for such a run."""
    return build_minimax_m3_draft_config(MiniMaxM3VLConfig(text_config=TEXT), Arguments(ARGUMENTS | changes))


def both(seed: int = 0, **changes: Any) -> tuple[Any, MiniMaxM3DSparkModel]:
    """AutoModel's draft and ours, in float32, with the same random weights.

    Weights are large enough that every clamp, gate and norm does something.
    """
    config = peer_config(**changes)
    config._attn_implementation = "sdpa"  # FlexAttention has no backward pass on a CPU
    torch.manual_seed(seed)
    peer = Peer(config)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            spread = 0.3 if "norm" in name else 2.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(torch.randn_like(parameter) * spread)
    ours = MiniMaxM3DSparkModel(config)
    ours.load_state_dict(peer.state_dict(), strict=True)
    return peer, ours


def batch(length: int = 40, sequences: int = 4, seed: int = 1) -> dict[str, torch.Tensor]:
    """Right-padded sequences: a whole one, one with gaps in its supervision, a short one, one with a single anchor."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [length, length, length // 3, 2][:sequences]
    loss_mask = torch.zeros(sequences, length)
    for row, count in enumerate(lengths):
        loss_mask[row, :count] = 1
    if sequences > 1:
        loss_mask[1, :4] = 0  # a prompt
        loss_mask[1, 9] = loss_mask[1, 20:23] = 0

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "input_ids": torch.randint(0, VOCAB - 1, (sequences, length), generator=generator),
        "target_hidden_states": normal(sequences, length, HIDDEN * len(LAYERS)),
        "loss_mask": loss_mask,
        "target_last_hidden_states": normal(sequences, length, HIDDEN),
    }


def same_draws(run: Any, seed: int = 7) -> Any:
    """Run with torch's global generator in a known state."""
    torch.manual_seed(seed)
    return run()


def namespace(table: dict[str, Any]) -> SimpleNamespace:
    """A saved config.json as the object that AutoModel's draft reads."""
    return SimpleNamespace(**table, _attn_implementation="sdpa")
