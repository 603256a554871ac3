"""A target and a draft small enough to count on paper."""

from __future__ import annotations

from sglang_dspark.bench.step_model.case import Case
from sglang_dspark.bench.step_model.prices import Prices
from sglang_dspark.bench.step_model.sizes import DraftSizes, TargetSizes

TARGET = TargetSizes(
    name="tiny", hidden=16, layers=3, query_heads=4, kv_heads=2, head_dim=8, vocabulary=64, dense_layers=1,
    dense_width=32, experts=4, experts_a_token=2, expert_width=8, shared_width=8, full_layers=1, index_heads=2,
    index_dim=8, block_tokens=4, top_blocks=2,
)  # fmt: skip
DRAFT = DraftSizes(layers=2, features=2, mlp_width=24, markov_rank=4, gamma=3)
# A launch 1 us, a byte 1 us, an operation and a sent byte nothing.
BYTES_ONLY = Prices("none", "none", 1e6, 1e30, 1e30, 1e30, 1.0, 1.0, 0.0, {})


def case(**changes) -> Case:
    return Case(**{"target": TARGET, "draft": DRAFT, "ranks": 1, "batch": 2, "context": 10, **changes})


def named(stages) -> dict[str, tuple[int, float, float]]:
    """Launches, bytes and operations by name, added up."""
    found: dict[str, tuple[int, float, float]] = {}
    for stage in stages:
        launches, moved, operations = found.get(stage.name, (0, 0.0, 0.0))
        found[stage.name] = (launches + stage.launches, moved + stage.moved_bytes, operations + stage.operations)
    return found
