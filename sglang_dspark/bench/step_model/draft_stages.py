"""What a round does beside the target's pass: the draft's context, its block, its proposals, and the bookkeeping.

Source of SGLang's own path: SGLang 0.5.23, srt/models/dspark_minimax.py and dspark.py (the network, the context
write, the Markov head), srt/speculative/dspark_components (the round; static verify, greedy). Ours:
models/minimax_m3_dspark.py of this package. Only the two ops differ, and what SGLang does where its fused context
writer does not cover a pool.
"""

from __future__ import annotations

from dataclasses import replace

from .case import NUMBER_BYTES, Case
from .stages import ACTIVATION_BYTES, Stage, all_reduce, elementwise, gather, linear, norm

CONTEXT, BLOCK, PROPOSE, ROUND = "context", "draft block", "proposals", "round"
OURS, SGLANG = "ours", "sglang"
# fp8 pools, SGLang: K and V are converted and then stored (mem_cache/memory_pool.py; two more where there are scales).
FP8_STORE_LAUNCHES = 3
COS_SIN_BYTES, INDEX_BYTES, ROTARY_SHARE = 4, 8, 0.5


def beside_target(case: Case, path: str) -> list[Stage]:
    """Every stage of a round but the target's pass, on one path: "ours" or "sglang"."""
    stages = [*_bookkeeping(case), *_context(case, path), *_block(case, path), *_proposals(case)]
    return [stage for stage in stages if stage.launches or stage.collectives]


def _bookkeeping(case: Case) -> list[Stage]:
    """The window's slots and positions, the tokens to verify, attention metadata; acceptance and its lengths."""
    hidden = case.batch * case.window * case.target.hidden
    return [
        Stage(ROUND, "slots, positions, metadata", launches=12, eager=True),
        Stage(ROUND, "acceptance", launches=4, eager=True),
        # The target's chosen layers are copied out as it runs, and joined to one row.
        elementwise(ROUND, "features", hidden * case.draft.features, 4, case.draft.features + 1),
    ]


def _context(case: Case, path: str) -> list[Stage]:
    """Features of every verified token to K and V of every draft layer, outside the captured graphs."""
    target, draft, rows = case.target, case.draft, case.batch * case.window
    kv_width = 2 * case.kv_heads * target.head_dim
    split = target.hidden // case.ranks
    stages = [
        linear(CONTEXT, "features to hidden (fc)", rows, draft.features * target.hidden, split),
        gather(CONTEXT, "hidden gather", rows * target.hidden, case.ranks),
        elementwise(CONTEXT, "hidden norm", rows * target.hidden, 2),
        _projection(case, rows, kv_width, path),
        _context_write(case, rows, kv_width, path),
    ]
    return [replace(stage, eager=True) for stage in stages]


def _covered_by_sglang(case: Case) -> bool:
    """SGLang's fused writer takes bf16 pools only."""
    return case.draft_kv == "bf16"


def _projection(case: Case, rows: int, kv_width: int, path: str) -> Stage:
    stacked = linear(CONTEXT, "K/V projection", rows, case.target.hidden, case.draft.layers * kv_width)
    if path == OURS or _covered_by_sglang(case):
        return stacked
    return linear(CONTEXT, "K/V projection", rows, case.target.hidden, kv_width).times(case.draft.layers)


def _context_write(case: Case, rows: int, kv_width: int, path: str) -> Stage:
    """Norm, rotation and store: K and V read once and written once, and each row's cos and sin, position and slot."""
    name, layers = "context K/V write", case.draft.layers
    if path == OURS or _covered_by_sglang(case):
        return Stage(
            CONTEXT, name, launches=1, moved_bytes=written_bytes(case, rows, layers, kv_width), op="context_kv",
            op_rows=rows, op_calls=1,
        )  # fmt: skip
    # Layer by layer: K normed, K rotated, and the store; every step reads and writes.
    k, kv = rows * kv_width / 2, rows * kv_width
    moved = (2 * k + 2 * k) * ACTIVATION_BYTES + _fp8_store_bytes(kv)
    stage = Stage(CONTEXT, name, launches=2 + FP8_STORE_LAUNCHES, moved_bytes=moved).times(layers)
    # The benchmark times all layers as one call.
    return replace(stage, op="context_kv", op_rows=rows, op_calls=1)


def written_bytes(case: Case, rows: int, layers: int, kv_width: int) -> float:
    """What a fused writer must move: docs/benchmarks.md counts the same, but for the norm's multipliers."""
    head_bytes = case.target.head_dim * ROTARY_SHARE * COS_SIN_BYTES + 2 * INDEX_BYTES
    return rows * (layers * kv_width * (ACTIVATION_BYTES + NUMBER_BYTES[case.draft_kv]) + head_bytes)


def _fp8_store_bytes(values: float) -> float:
    """Converted (two bytes read, one written), then stored (one read, one written)."""
    return values * (ACTIVATION_BYTES + 1 + 2)


def _block(case: Case, path: str) -> list[Stage]:
    """The draft's layers over gamma rows of each request, in the draft's graph."""
    target, draft = case.target, case.draft
    rows = case.batch * draft.gamma
    main = (case.query_heads + 2 * case.kv_heads) * target.head_dim
    inner, width = case.query_heads * target.head_dim, draft.mlp_width // case.ranks
    layer = [
        linear(BLOCK, "qkv projection", rows, target.hidden, main),
        _query_op(case, rows, path),
        _attention(case, rows),
        linear(BLOCK, "output projection", rows, inner, target.hidden),
        linear(BLOCK, "MLP", rows, target.hidden, 2 * width),
        elementwise(BLOCK, "MLP", rows * width, 3),
        linear(BLOCK, "MLP", rows, width, target.hidden),
    ]
    return [
        elementwise(BLOCK, "embedding", rows * target.hidden, 2),
        norm(BLOCK, "norms", rows, target.hidden).times(2 * draft.layers + 1),
        *(stage.times(draft.layers) for stage in layer),
        all_reduce(BLOCK, rows, target.hidden, case.ranks).times(2 * draft.layers + 1),
    ]


def _query_op(case: Case, rows: int, path: str) -> Stage:
    """A block's q and k normed and rotated, its K and V stored: ours in one launch, SGLang's in two or more."""
    target = case.target
    q, kv = case.query_heads * target.head_dim, 2 * case.kv_heads * target.head_dim
    name, op = "q/k norm, rope, KV store", "qk_norm_rope"
    if path == OURS:
        moved = written_bytes(case, rows, 1, kv) + rows * q * 2 * ACTIVATION_BYTES
        return Stage(BLOCK, name, launches=1, moved_bytes=moved, op=op, op_rows=rows, op_calls=1)
    normed = rows * (q + kv / 2) * 2 * ACTIVATION_BYTES
    if case.draft_kv == "bf16":
        return Stage(
            BLOCK, name, launches=2, moved_bytes=normed + rows * kv * 2 * ACTIVATION_BYTES, op=op, op_rows=rows,
            op_calls=1,
        )  # fmt: skip
    return Stage(
        BLOCK, name, launches=1 + FP8_STORE_LAUNCHES, moved_bytes=normed + _fp8_store_bytes(rows * kv), op=op,
        op_rows=rows, op_calls=1,
    )  # fmt: skip


def _attention(case: Case, rows: int) -> Stage:
    """Full attention of a block over its context and itself."""
    target, seen = case.target, case.context + case.draft.gamma
    moved = case.batch * seen * 2 * case.kv_heads * target.head_dim * NUMBER_BYTES[case.draft_kv]
    work = 4.0 * rows * seen * case.query_heads * target.head_dim
    return Stage(BLOCK, "attention", launches=2, moved_bytes=moved, operations=work)


def _proposals(case: Case) -> list[Stage]:
    """The base logits of every row by the target's head, then a Markov step a token; a rank holds its part of both."""
    target, draft = case.target, case.draft
    share = -(-target.vocabulary // case.ranks)
    rows = case.batch * draft.gamma
    # The previous token's row of W1; the product with W2; base and bias added, and the token chosen in two kernels.
    step = Stage(
        PROPOSE,
        "Markov steps",
        launches=4,
        moved_bytes=share * draft.markov_rank * ACTIVATION_BYTES + case.batch * share * 3 * ACTIVATION_BYTES,
        operations=2.0 * case.batch * share * draft.markov_rank,
    )
    # Ranks exchange their best candidates, a few bytes a request.
    exchange = Stage(PROPOSE, "Markov steps", collectives=int(case.ranks > 1))
    return [
        linear(PROPOSE, "LM head", rows, target.hidden, share),
        step.times(draft.gamma),
        exchange.times(draft.gamma),
    ]
