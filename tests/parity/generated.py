"""Cases of both ops that nobody wrote down: hypothesis draws them, the law judges them.

A drawn case is the same small value as a named one, and its tensors follow from its name, so a failing case that
hypothesis prints can be put into `cases.py` as it is. What the law leaves open is not drawn: two written rows with one
slot, and a position or slot outside the tables in a row that is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from .cases import E4M3FN, E4M3FNUZ, FAR, NUM_POSITIONS, NUM_SLOTS, Case
from .qk_norm_rope import cases as query

BF16, F32 = torch.bfloat16, torch.float32
NIGHTLY = os.environ.get("DSPARK_NIGHTLY") == "1"
VALUES = ("normal", "tiny", "subnormal", "large", "rounds_to_zero", "huge", "zeros", "any_bits")
INT32 = 2**31
# 16 values of slots in a page, as a paged pool hands them out; 1 is no page at all.
PAGES = (1, 16, 64)


def profile(examples: int, nightly: int) -> Callable[[Any], Any]:
    """The same cases in every CI run; many more, and other ones each time, by night."""
    return settings(
        max_examples=nightly if NIGHTLY else examples,
        derandomize=not NIGHTLY,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def shapes(native: bool) -> st.SearchStrategy[tuple[int, int]]:
    """(head_dim, rotary_dim); `native`: what the compiled kernels cover."""
    if native:
        return st.sampled_from((64, 128, 256)).flatmap(
            lambda dim: st.tuples(st.just(dim), st.integers(1, dim // 16).map(lambda n: 16 * n))
        )
    return st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(2 * n), st.integers(1, n).map(lambda r: 2 * r)))


@st.composite
def written_slots(draw: st.DrawFn, tokens: int, num_slots: int = NUM_SLOTS) -> tuple[int, ...]:
    """Distinct slots, page by page, at the ends of the pool now and then, with holes."""
    page = draw(st.sampled_from(PAGES))
    pages = draw(st.permutations(range(num_slots // page)))
    slots = [page * p + offset for p in pages[: tokens // page + 1] for offset in range(page)][:tokens]
    if slots and draw(st.booleans()):
        edge = draw(st.sampled_from((0, num_slots - 1)))
        slots = [edge, *(slot for slot in slots if slot != edge)][:tokens]
        slots += [slot for slot in range(num_slots) if slot not in slots][: tokens - len(slots)]
    holes = draw(st.sets(st.integers(0, max(tokens - 1, 0)), max_size=tokens))
    every_hole = tokens and draw(st.integers(0, 9)) == 0
    negative = st.sampled_from((-1, -2, -NUM_SLOTS, -INT32, -(2**32), -FAR, -(2**63), 3 - FAR))
    return tuple(draw(negative) if every_hole or i in holes else slot for i, slot in enumerate(slots))


def positions(tokens: int) -> st.SearchStrategy[list[int]]:
    """Inside the table, its ends often."""
    one = st.one_of(st.sampled_from((0, NUM_POSITIONS - 1)), st.integers(0, NUM_POSITIONS - 1))
    return st.lists(one, min_size=tokens, max_size=tokens)


scales = st.one_of(
    st.sampled_from((1.0, 0.5, 2.0**-64, 2.0**64, 1 / 3, 448.0, 2.0**-10)),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.floats(2.0**-64, 2.0**64, width=32),
)
eps = st.sampled_from((1e-6, 1e-5, 1e-2, 1.0, 2.0**-96, 1e-12))
garbage = st.sampled_from((FAR, -FAR, -1, NUM_POSITIONS, 2**63 - 1, -(2**63), INT32, 2**32))


@st.composite
def context_cases(draw: st.DrawFn, native: bool = True) -> Case:
    """A case of the context KV writer."""
    tokens, layers, heads = draw(st.integers(0, 12)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    head_dim, rotary_dim = draw(shapes(native))
    pool_dtype = draw(st.sampled_from((None, E4M3FN, E4M3FNUZ))) if native else None
    blocks = (
        draw(st.sampled_from([b for b in range(1, tokens + 1) if tokens % b == 0] or [2])) if draw(st.booleans()) else 0
    )
    width = tokens // blocks if blocks else 0
    commits = st.sampled_from(sorted({-INT32, -1, 0, 1, max(width - 1, 0), width, width + 1, INT32 - 1}))
    commit_lens = tuple(draw(commits) for _ in range(blocks))
    slots = draw(written_slots(tokens))
    places = draw(positions(tokens))
    for token in range(tokens):
        rejected = blocks and token % width >= commit_lens[token // width]
        if (rejected or slots[token] < 0) and draw(st.booleans()):
            places[token] = draw(garbage)
        if rejected and draw(st.booleans()):
            # What a rejected row asks for is read by nobody: another row's slot, or one that is in no pool.
            slot = draw(st.sampled_from((*slots, NUM_SLOTS, FAR, 2**63 - 1)))
            slots = (*slots[:token], slot, *slots[token + 1 :])
    return Case(
        name=f"generated-{draw(st.integers(0, 2**32))}",
        catches="",
        tokens=tokens,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        is_neox=draw(st.booleans()),
        dtype=BF16 if native else draw(st.sampled_from((BF16, F32))),
        cos_sin_dtype=draw(st.sampled_from((F32, BF16))),
        eps=draw(eps),
        layer_norm_scales=draw(st.sampled_from(((), tuple(float(2 * i - 3) for i in range(layers)), (0.0,) * layers))),
        values=draw(st.sampled_from(VALUES)),
        pool_padding=draw(st.tuples(st.integers(0, 9), st.sampled_from((0, 8, 64)))),
        kv_gap=draw(st.sampled_from((0, 8, 24))) if native else draw(st.integers(0, 9)),
        slots=slots,
        positions=tuple(places),
        commit_lens=commit_lens,
        commit_dtype=draw(st.sampled_from((torch.int32, torch.int64))),
        pool_dtype=pool_dtype,
        scales=tuple(draw(scales) for _ in range(2 * layers)) if pool_dtype and draw(st.booleans()) else (),
    )


@st.composite
def query_cases(draw: st.DrawFn, native: bool = True) -> query.Case:
    """A case of the query block's op."""
    tokens, kv_heads = draw(st.integers(0, 10)), draw(st.integers(1, 4))
    head_dim, rotary_dim = draw(shapes(native))
    dtype = BF16 if native else draw(st.sampled_from((BF16, F32)))
    pool_dtype = draw(st.sampled_from((None, E4M3FN, E4M3FNUZ)))
    fp8_query = draw(st.sampled_from((None, pool_dtype if native else E4M3FN)))
    pools = draw(st.booleans())
    return query.Case(
        name=f"generated-{draw(st.integers(0, 2**32))}",
        catches="",
        tokens=tokens,
        heads=(kv_heads * draw(st.integers(1, 5)), kv_heads),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        is_neox=draw(st.booleans()),
        dtype=dtype,
        cos_sin_dtype=draw(st.sampled_from((F32, BF16))),
        eps=draw(eps),
        values=draw(st.sampled_from(VALUES)),
        qkv_gap=draw(st.sampled_from((0, 8, 24))) if native else draw(st.integers(0, 9)),
        pools=pools,
        pool_dtype=pool_dtype,
        pool_scales=(draw(scales), draw(scales)) if pool_dtype and draw(st.booleans()) else None,
        pool_padding=draw(st.tuples(st.integers(0, 9), st.sampled_from((0, 8, 64)))),
        slots=draw(written_slots(tokens, query.NUM_SLOTS)) if pools and tokens and draw(st.integers(0, 3)) else None,
        positions=tuple(draw(positions(tokens))),
        q_fp8_dtype=fp8_query,
        q_scale=draw(scales) if fp8_query and draw(st.booleans()) else None,
        q_fp8_gap=draw(st.integers(0, 9)),
    )
