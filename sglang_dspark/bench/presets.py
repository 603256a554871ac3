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


RELEASED_LAYERS = 5


def minimax_m3(ranks: int, layers: int = RELEASED_LAYERS) -> Preset:
    """MiniMax-M3's released drafts: 5 layers, 64 query heads and 4 KV heads of 128, of which 64 are rotated.

    Another depth, as `sglang-dspark train` may make it, is named with it: m3-tp4-depth3.
    """
    name = f"m3-tp{ranks}" + (f"-depth{layers}" if layers != RELEASED_LAYERS else "")
    return Preset(name, ranks, layers, 64 // ranks, max(1, 4 // ranks), 128, 64, 6144)


PRESETS = {
    preset.name: preset for preset in (*map(minimax_m3, (1, 2, 4, 8)), *(minimax_m3(4, depth) for depth in (1, 3)))
}
QUICK_PRESETS = ("m3-tp4", "m3-tp1")
# One token; a request's block; a few requests', many requests'; prefill chunks.
TOKENS = (1, 4, 8, 16, 48, 128, 512, 2048, 4096, 8192, 16384)
QUICK_TOKENS = (1, 48, 4096)
