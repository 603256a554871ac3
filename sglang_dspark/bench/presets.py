"""The shapes that benchmarks run: a model on so many ranks, as one rank sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """The draft of a model on one rank of a tensor-parallel group; more ranks than KV heads replicate them."""

    name: str
    ranks: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    hidden_size: int


def minimax_m3(ranks: int) -> Preset:
    """MiniMax-M3's released drafts: 5 layers, 64 query heads and 4 KV heads of 128, of which 64 are rotated."""
    return Preset(f"m3-tp{ranks}", ranks, 5, 64 // ranks, max(1, 4 // ranks), 128, 64, 6144)


PRESETS = {preset.name: preset for preset in map(minimax_m3, (1, 2, 4, 8))}
# H = 4 and H = 1, the two ends; tp8 has the writer's shapes of tp4.
WRITER_PRESETS = (PRESETS["m3-tp4"], PRESETS["m3-tp1"])
# One token; a verify window; six of them; prefill chunks.
WRITER_TOKENS = (1, 8, 48, 512, 4096, 8192)
QUICK_TOKENS = (1, 48, 4096)
