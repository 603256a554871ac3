"""The CPU attention backend against a reference that works one query row at a time in float64.

Each case is also computed with the other mask, which must give another answer: a wrong mask would be seen.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.radix_attention import AttentionType

from sglang_dspark.serving.cpu.attention import CpuAttnBackend, Request, _read, requests_of, visible_keys
from tests.unit.serving.cpu.batches import HEAD_DIM, HEADS, KV_HEADS, Pool, decode, prefill, slot_table, verify

# float32 attention over at most 16 keys of size 1: about 1e-6 of rounding.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

# name -> (batch, its requests as (row, query rows, context)): one of every kind that DSPARK makes.
BATCHES = {
    "prefill": (prefill([2, 0], [0, 0], [5, 3]), [(2, 5, 0), (0, 3, 0)]),
    "prefill behind a prefix": (prefill([1, 3], [6, 0], [4, 2]), [(1, 4, 6), (3, 2, 0)]),
    "uniform verify": (verify([3, 1], [7, 9], 4), [(3, 4, 7), (1, 4, 9)]),
    "ragged verify": (verify([0, 2, 1], [4, 8, 1], [1, 5, 3]), [(0, 1, 4), (2, 5, 8), (1, 3, 1)]),
    "decode": (decode([2, 3], [6, 1]), [(2, 1, 5), (3, 1, 0)]),
}
CASES = pytest.mark.parametrize("name", BATCHES)


def layer(causal: bool) -> SimpleNamespace:
    return SimpleNamespace(
        layer_id=0,
        tp_q_head_num=HEADS,
        tp_k_head_num=KV_HEADS,
        qk_head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        scaling=0.3,
        k_scale_float=None,
        v_scale_float=None,
        attn_type=AttentionType.DECODER if causal else AttentionType.ENCODER_ONLY,
    )


def backend(pool: Pool, table: torch.Tensor) -> CpuAttnBackend:
    runner = SimpleNamespace(device="cpu", req_to_token_pool=SimpleNamespace(req_to_token=table), token_to_kv_pool=pool)
    return CpuAttnBackend(runner)


def rows_of(requests: list[tuple[int, int, int]], padding: int = 0) -> tuple[torch.Tensor, ...]:
    total = sum(width for _, width, _ in requests) + padding
    generator = torch.Generator().manual_seed(total)
    q = torch.randn(total, HEADS * HEAD_DIM, generator=generator)
    k = torch.randn(total, KV_HEADS, HEAD_DIM, generator=generator)
    v = torch.randn(total, KV_HEADS, HEAD_DIM, generator=generator)
    return q, k, v


def slots_of(requests: list[tuple[int, int, int]], table: torch.Tensor) -> torch.Tensor:
    return torch.cat([table[row, context : context + width] for row, width, context in requests]).long()


def reference(
    q: torch.Tensor, pool: Pool, table: torch.Tensor, requests: list[tuple[int, int, int]], causal: bool
) -> torch.Tensor:
    """softmax(scale * q . k) v, one query row and head at a time."""
    out, at = torch.zeros(q.shape[0], HEADS, HEAD_DIM, dtype=torch.float64), 0
    for row, width, context in requests:
        for i in range(width):
            seen = context + i + 1 if causal else context + width
            slots = table[row, :seen].long()
            for head in range(HEADS):
                kv_head = head * KV_HEADS // HEADS
                query = q[at].view(HEADS, HEAD_DIM)[head].double()
                scores = pool.keys[slots, kv_head].double() @ query * 0.3
                out[at, head] = scores.softmax(0) @ pool.values[slots, kv_head].double()
            at += 1
    return out.flatten(1)


def run(name: str, causal: bool, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Pool]:
    """The backend's output, the reference's, the reference's with the other mask, and the pool."""
    batch, requests = BATCHES[name]
    pool, table = Pool(), slot_table()
    q, k, v = rows_of(requests, padding)
    real = q.shape[0] - padding
    batch.out_cache_loc = slots_of(requests, table)
    attention = backend(pool, table)
    attention.init_forward_metadata(batch)
    out = attention.forward_extend(q, k[:real], v[:real], layer(causal), batch)
    right, wrong = (reference(q, pool, table, requests, mask) for mask in (causal, not causal))
    return out, right, wrong, pool


@CASES
def test_the_requests_of_every_kind_of_batch(name: str) -> None:
    """Fault 23.

    Verify batches count the window beside seq_lens, all others inside: off by a window reads foreign slots.
    """
    batch, requests = BATCHES[name]
    assert requests_of(batch) == [Request(*request) for request in requests]


@CASES
def test_the_target_is_causal(name: str) -> None:
    """A verify row that sees the tokens behind it accepts a draft because of the draft's own later tokens."""
    out, right, wrong, _ = run(name, causal=True)
    torch.testing.assert_close(out.double(), right, **CLOSE)
    if name != "decode":
        assert (out - wrong).abs().max() > 0.05


@CASES
def test_the_draft_block_sees_its_context_and_all_of_itself(name: str) -> None:
    """Fault 12.

    With a causal block, the first mask tokens would not see the later ones: acceptance drops, nothing raises.
    """
    out, right, wrong, _ = run(name, causal=False)
    torch.testing.assert_close(out.double(), right, **CLOSE)
    if name != "decode":
        assert (out - wrong).abs().max() > 0.05


def test_the_last_row_of_a_window_is_the_same_under_both_masks_and_no_other() -> None:
    """Says which rows tell the masks apart, so that the two tests above are known to look at them."""
    _, right, wrong, _ = run("uniform verify", causal=True)
    differs = (right - wrong).abs().amax(-1) > 1e-6
    assert differs.tolist() == [True, True, True, False] * 2


@pytest.mark.parametrize("padding", [1, 5])
@pytest.mark.parametrize("name", ["ragged verify", "uniform verify"])
def test_padding_rows_give_zero(name: str, padding: int) -> None:
    """A ragged batch is padded to a fixed size: rows that belong to no request must not become NaN or noise."""
    out, right, _, _ = run(name, causal=True, padding=padding)
    torch.testing.assert_close(out.double(), right, **CLOSE)
    assert out[-padding:].abs().max() == 0


def test_keys_and_values_are_stored_first() -> None:
    """Read before they are stored, a row would attend to what the slot held before."""
    batch, requests = BATCHES["prefill"]
    pool, table = Pool(), slot_table()
    q, k, v = rows_of(requests)
    batch.out_cache_loc = slots_of(requests, table)
    attention = backend(pool, table)
    attention.init_forward_metadata(batch)
    out = attention.forward_extend(q, k, v, layer(causal=True), batch)
    assert torch.equal(pool.keys[batch.out_cache_loc], k)
    assert torch.equal(pool.values[batch.out_cache_loc], v)
    # The first row of a request without a prefix sees itself alone: its output is its own value.
    torch.testing.assert_close(out[0].view(HEADS, HEAD_DIM)[::2], v[0], **CLOSE)


def test_nothing_is_stored_when_asked_not_to() -> None:
    batch, requests = BATCHES["prefill"]
    pool, table = Pool(), slot_table()
    q, k, v = rows_of(requests)
    batch.out_cache_loc = slots_of(requests, table)
    attention = backend(pool, table)
    attention.init_forward_metadata(batch)
    attention.forward_extend(q, k, v, layer(causal=True), batch, save_kv_cache=False)
    attention.forward_extend(q, None, None, layer(causal=True), batch)
    assert torch.equal(pool.keys, Pool().keys) and torch.equal(pool.values, Pool().values)


def test_a_pool_of_another_dtype_is_read_in_the_query_s() -> None:
    """A float32 model with a bf16 pool: torch's attention refuses mixed dtypes."""
    batch, requests = BATCHES["uniform verify"]
    pool, table = Pool(), slot_table()
    pool.keys, pool.values = pool.keys.bfloat16(), pool.values.bfloat16()
    q, _, _ = rows_of(requests)
    attention = backend(pool, table)
    attention.init_forward_metadata(batch)
    out = attention.forward_extend(q, None, None, layer(causal=True), batch)
    torch.testing.assert_close(out.double(), reference(q, pool, table, requests, True), **CLOSE)


def test_requests_do_not_see_each_other() -> None:
    """A row of one request in another's slots would leak text between users; the outputs alone must not change."""
    batch, requests = BATCHES["uniform verify"]
    pool, table = Pool(), slot_table()
    q, _, _ = rows_of(requests)
    attention = backend(pool, table)
    attention.init_forward_metadata(batch)
    before = attention.forward_extend(q, None, None, layer(causal=True), batch)
    others = table[1].long()
    pool.keys[others], pool.values[others] = 9.0, 9.0
    after = attention.forward_extend(q, None, None, layer(causal=True), batch)
    assert torch.equal(before[:4], after[:4])
    assert not torch.equal(before[4:], after[4:])


def test_visible_keys() -> None:
    assert visible_keys(2, 3, causal=False) is None
    assert visible_keys(2, 1, causal=True).tolist() == [[True, True, False], [True, True, True]]


@pytest.mark.parametrize("scale", [None, 0.25])
def test_an_fp8_pool_is_read_times_its_scale(scale: float | None) -> None:
    """Fault 3.

    An fp8 pool holds value / scale; reading it without the scale is noise that only acceptance would show.
    """
    pool = torch.randn(6, KV_HEADS, HEAD_DIM).to(torch.float8_e4m3fn)
    slots = torch.tensor([4, 0, 5])
    expected = pool.float()[slots] * (1.0 if scale is None else scale)
    assert torch.equal(_read(pool, slots, scale, torch.float32), expected)
