"""The target's forward pass, as SGLang 0.5.23 runs it (srt/models/minimax_m3.py), for decoding and for verifying.

Both are the same stages with other numbers of rows; our plugin changes none of them.
"""

from __future__ import annotations

from dataclasses import replace

from .case import NUMBER_BYTES, WEIGHT_BYTES, Case
from .stages import ACTIVATION_BYTES, Stage, all_reduce, distinct_experts, elementwise, gather, linear, norm

PART = "target"


def forward(case: Case, window: int) -> list[Stage]:
    """Every stage for ``window`` tokens of each request.

    Args:
        case: the question.
        window: 1 decodes, gamma + 1 verifies.
    """
    target, rows = case.target, case.batch * window
    sparse = target.layers - target.full_layers
    moe = target.layers - target.dense_layers
    reduce_layer = all_reduce(PART, rows, target.hidden, case.ranks)
    stages = [
        elementwise(PART, "embedding", rows * target.hidden, 2),
        norm(PART, "norms", rows, target.hidden).times(2 * target.layers + 1),
        *_projections(case, rows, sparse),
        _full_attention(case, rows).times(target.full_layers),
        *([_index(case, rows).times(sparse), _sparse_attention(case, rows, window).times(sparse)] if sparse else ()),
        *(stage.times(target.dense_layers) for stage in _dense(case, rows)),
        *(stage.times(moe) for stage in _experts(case, rows)),
        # After attention, after the MLP, and one after the embedding, whose rows are split as well.
        reduce_layer.times(2 * target.layers + 1),
        *_head(case, rows),
    ]
    return [stage for stage in stages if stage.launches or stage.collectives]


def _projections(case: Case, rows: int, sparse: int) -> list[Stage]:
    """Query, key, value and, on sparse layers, the index's in one product; norm, rotation and store; the output's."""
    target, weights = case.target, WEIGHT_BYTES[case.weights]
    main = (case.query_heads + 2 * case.kv_heads) * target.head_dim
    index = (case.index_heads + 1) * target.index_dim
    inner = case.query_heads * target.head_dim
    # One kernel norms, rotates and stores on sparse layers with a bf16 pool. Full layers, and fp8 pools, store apart: K
    # and V converted for fp8, one store, and one of the index's keys.
    apart = 1 + (1 if case.kv == "bf16" else 3)
    together = 1 if case.kv == "bf16" else apart + 1
    return [
        linear(PART, "qkv projection", rows, target.hidden, main + index, weights).times(sparse),
        linear(PART, "qkv projection", rows, target.hidden, main, weights).times(target.full_layers),
        elementwise(PART, "q/k norm, rope, KV store", rows * (main + index), 2, together).times(sparse),
        elementwise(PART, "q/k norm, rope, KV store", rows * main, 2, apart).times(target.full_layers),
        linear(PART, "output projection", rows, inner, target.hidden, weights).times(target.layers),
    ]


def _full_attention(case: Case, rows: int) -> Stage:
    """Every request's whole KV once, for all its queries; split over the context, so a kernel merges the parts."""
    target = case.target
    moved = case.batch * case.context * 2 * case.kv_heads * target.head_dim * NUMBER_BYTES[case.kv]
    work = 4.0 * rows * case.context * case.query_heads * target.head_dim
    return Stage(PART, "full attention", launches=2, moved_bytes=moved, operations=work)


def _index(case: Case, rows: int) -> Stage:
    """The index: one key of every context token, scored by every query, then the best blocks of each."""
    target = case.target
    moved = case.batch * case.context * target.index_dim * ACTIVATION_BYTES
    work = 2.0 * rows * case.context * case.index_heads * target.index_dim
    return Stage(PART, "block index", launches=2, moved_bytes=moved, operations=work)


def _sparse_attention(case: Case, rows: int, window: int) -> Stage:
    """The chosen blocks' KV: once where a window's queries choose alike, once a query where they do not."""
    target = case.target
    chosen = min(case.context, target.top_blocks * target.block_tokens)
    read = min(case.context, chosen * (1 + (window - 1) * (1 - case.block_overlap)))
    moved = case.batch * read * 2 * case.kv_heads * target.head_dim * NUMBER_BYTES[case.kv]
    work = 4.0 * rows * chosen * case.query_heads * target.head_dim
    return Stage(PART, "block-sparse attention", launches=2, moved_bytes=moved, operations=work)


def _dense(case: Case, rows: int) -> list[Stage]:
    target, weights = case.target, WEIGHT_BYTES[case.weights]
    width = target.dense_width // case.ranks
    return [
        linear(PART, "dense MLP", rows, target.hidden, 2 * width, weights),
        elementwise(PART, "dense MLP", rows * width, 3),
        linear(PART, "dense MLP", rows, width, target.hidden, weights),
    ]


def _experts(case: Case, rows: int) -> list[Stage]:
    """Router, choice, sort; the chosen experts' products; their weighted sum; the shared expert."""
    target, weights = case.target, WEIGHT_BYTES[case.weights]
    width, shared = target.expert_width // case.ranks, target.shared_width // case.ranks
    # Of a window's tokens, those that choose experts of their own.
    alone = case.batch * (1 + (rows // case.batch - 1) * (1 - case.expert_overlap))
    reached = distinct_experts(target.experts, target.experts_a_token, alone)
    pairs = rows * target.experts_a_token
    narrow = case.weights != "bf16"
    # Up, activation, down; fp8 quantises the input of both products.
    launches = 3 + 2 * narrow
    routed = Stage(
        PART,
        "routed experts",
        launches=launches,
        moved_bytes=reached * 3 * target.hidden * width * weights
        + pairs * (2 * target.hidden + 5 * width) * ACTIVATION_BYTES,
        operations=6.0 * pairs * target.hidden * width,
        narrow=narrow,
    )
    stages = [
        linear(PART, "router", rows, target.hidden, target.experts),
        # The best experts of each token; the pairs sorted by expert.
        elementwise(PART, "router", rows * target.experts, 2, launches=2),
        routed,
        elementwise(PART, "routed experts", (pairs + rows) * target.hidden, 1),
    ]
    if target.shared_width:
        parts = [
            linear(PART, "shared expert", rows, target.hidden, 2 * shared, weights),
            elementwise(PART, "shared expert", rows * shared, 3),
            linear(PART, "shared expert", rows, shared, target.hidden, weights),
            elementwise(PART, "shared expert", rows * target.hidden, 3),
        ]
        if case.shared_fused:
            # One more expert in the routed ones' launches: more bytes and work, no launch of its own.
            stages[2] = replace(
                routed,
                moved_bytes=routed.moved_bytes + sum(part.moved_bytes for part in parts),
                operations=routed.operations + sum(part.operations for part in parts),
            )
        else:
            stages += parts
    return stages


def _head(case: Case, rows: int) -> list[Stage]:
    """Logits of every row, gathered, and the likeliest token of each."""
    target = case.target
    return [
        linear(PART, "LM head", rows, target.hidden, -(-target.vocabulary // case.ranks)),
        gather(PART, "logits gather", rows * target.vocabulary, case.ranks),
        elementwise(PART, "argmax", rows * target.vocabulary, 1, launches=2),
    ]
