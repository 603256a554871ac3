"""Block-sparse attention against a slow selection and against dense attention with the mask written out."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.serving.cpu import sparse_attention
from sglang_dspark.serving.cpu.attention import requests_of
from sglang_dspark.serving.cpu.sparse_attention import CpuMiniMaxSparseBackend, select_blocks
from tests.unit.serving.cpu.batches import HEAD_DIM, HEADS, KV_HEADS, SLOTS, Pool, decode, prefill, slot_table, verify

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def slow_select(
    scores: torch.Tensor, positions: list[int], block: int, selected: int, init: int, local: int, kind: str
) -> torch.Tensor:
    """The blocks kept for each head and query, in plain Python."""
    heads, queries, keys = scores.shape
    blocks = math.ceil(keys / block)
    kept = torch.zeros(heads, queries, blocks, dtype=torch.bool)
    for head in range(heads):
        for query, position in enumerate(positions):
            own = position // block
            ranked = []
            for b in range(own + 1):
                row = [scores[head, query, key].item() for key in range(b * block, min((b + 1) * block, keys))]
                total = sum(math.exp(x) for x in row)
                value = max(row) if kind == "max" else math.log(total) if total else -math.inf
                # The first blocks, then the nearest, then the best; each counts as a selected one.
                rank = 0 if b < init else 1 if b > own - local else 2
                ranked.append((rank, -value, b))
            for _, _, b in sorted(ranked)[:selected]:
                kept[head, query, b] = True
    return kept


def causal_scores(heads: int, queries: int, keys: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.randn(heads, queries, keys, generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(keys - queries, keys)
    return scores.masked_fill(torch.arange(keys) > positions.unsqueeze(1), -math.inf), positions


@pytest.mark.parametrize("kind", ["max", "lse"])
@pytest.mark.parametrize(
    ("selected", "init", "local"), [(3, 1, 1), (4, 0, 1), (4, 1, 2), (2, 1, 1), (1, 0, 0), (3, 0, 0), (9, 1, 1)]
)
def test_selection(kind: str, selected: int, init: int, local: int) -> None:
    """Init and local blocks counted on top of the selected ones would attend to more than the model was trained for."""
    for seed, (queries, keys) in enumerate([(4, 31), (31, 31), (1, 16), (3, 5), (2, 33)]):
        scores, positions = causal_scores(2, queries, keys, seed)
        found = select_blocks(
            scores,
            positions,
            block_size=4,
            num_selected=selected,
            num_init=init,
            num_local=local,
            score_type=kind,
        )
        assert torch.equal(found, slow_select(scores, positions.tolist(), 4, selected, init, local, kind))
        # Never more blocks than asked for, and the forced ones are among them.
        assert found.sum(-1).max() <= selected


def test_the_two_scores_select_differently() -> None:
    """A maximum taken for a log-sum-exp would pass a test on one of them alone."""
    scores = torch.tensor([[[2.0, -9, 1.5, 1.5, -9, -9]]])
    chosen = {
        kind: select_blocks(
            scores, torch.tensor([5]), block_size=2, num_selected=1, num_init=0, num_local=0, score_type=kind
        )[0, 0].tolist()
        for kind in ("max", "lse")
    }
    assert chosen == {"max": [True, False, False], "lse": [False, True, False]}


class SparsePool(Pool):
    """The main pool beside the index branch's one key and value head."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.index_keys = torch.randn(SLOTS, 1, HEAD_DIM, generator=generator)
        self.index_values = torch.randn(SLOTS, 1, HEAD_DIM, generator=generator)

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.values

    def get_index_k_buffer(self, layer_id: int) -> torch.Tensor:
        return self.index_keys

    def get_index_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.index_keys, self.index_values

    def set_fused_kv_index_buffer(self, layer, slots, k, v, index_k, index_v, *scales) -> None:
        self.keys[slots], self.values[slots], self.index_keys[slots] = k, v, index_k
        self.stored_index_value = index_v is not None


def sparse_backend(pool: SparsePool, table: torch.Tensor, **settings: object) -> CpuMiniMaxSparseBackend:
    """The backend without its __init__, which reads a model runner."""
    made = object.__new__(CpuMiniMaxSparseBackend)
    made.kv_pool, made.req_to_token = pool, table
    made.block_size_k, made.topk_blocks, made.init_blocks, made.local_blocks = 2, 3, 1, 1
    made.score_type, made.disable_value_layer_ids = "max", set()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


LAYER = SimpleNamespace(
    layer_id=0, scaling=0.3, k_scale_float=1.0, v_scale_float=1.0, idx_k_scale_float=1.0, idx_v_scale_float=1.0
)


def dense_with_mask(
    q: torch.Tensor, index_q: torch.Tensor, pool: SparsePool, table: torch.Tensor, requests: list, topk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Main and index output one query row at a time in float64, with the mask of the slow selection."""
    index_heads = index_q.shape[1]
    out = torch.zeros(q.shape[0], HEADS, HEAD_DIM, dtype=torch.float64)
    index_out = torch.zeros(q.shape[0], index_heads, HEAD_DIM, dtype=torch.float64)
    at = 0
    for row, width, context in requests:
        for position in range(context, context + width):
            slots = table[row, : position + 1].long()
            index_keys = pool.index_keys[slots, 0].double()
            scores = index_q[at].double() @ index_keys.T / math.sqrt(HEAD_DIM)  # [index heads, keys]
            index_out[at] = scores.softmax(-1) @ pool.index_values[slots, 0].double()
            kept = slow_select(scores[:, None], [position], 2, topk, 1, 1, "max")[:, 0]  # [index heads, blocks]
            for head in range(HEADS):
                kv_head = head * KV_HEADS // HEADS
                if index_heads > KV_HEADS:
                    share = index_heads // KV_HEADS
                    blocks = kept[kv_head * share : (kv_head + 1) * share].any(0)
                else:
                    blocks = kept[head * index_heads // HEADS]
                keys = [i for i in range(position + 1) if blocks[i // 2]]
                logits = pool.keys[slots[keys], kv_head].double() @ q[at, head].double() * LAYER.scaling
                out[at, head] = logits.softmax(0) @ pool.values[slots[keys], kv_head].double()
            at += 1
    return out.flatten(1), index_out.flatten(1)


@pytest.mark.parametrize("index_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("batch", "requests"),
    [
        (prefill([2, 0], [0, 5], [9, 3]), [(2, 9, 0), (0, 3, 5)]),
        (verify([3, 1], [9, 2], 4), [(3, 4, 9), (1, 4, 2)]),
        (verify([3, 1], [9, 4], [2, 5]), [(3, 2, 9), (1, 5, 4)]),
        (decode([1, 2], [14, 1]), [(1, 1, 13), (2, 1, 0)]),
    ],
    ids=["prefill", "uniform verify", "ragged verify", "decode"],
)
def test_sparse_against_dense_with_the_mask(batch, requests, index_heads: int) -> None:
    """Fault 23. Also says that the mask matters here: with every block selected the answer is another one."""
    pool, table = SparsePool(), slot_table()
    rows = sum(width for _, width, _ in requests)
    generator = torch.Generator().manual_seed(rows)
    q = torch.randn(rows, HEADS, HEAD_DIM, generator=generator)
    index_q = torch.randn(rows, index_heads, HEAD_DIM, generator=generator)
    k, v = (torch.randn(rows, KV_HEADS, HEAD_DIM, generator=generator) for _ in range(2))
    index_k = torch.randn(rows, 1, HEAD_DIM, generator=generator)
    batch.out_cache_loc = torch.cat([table[row, c : c + w] for row, w, c in requests]).long()
    made = sparse_backend(pool, table)
    made.init_forward_metadata(batch)
    assert made._requests == requests_of(batch)
    index_out, out = made.forward_extend(q, k, v, LAYER, batch, idx_q=index_q, idx_k=index_k, idx_v=index_k)
    right, right_index = dense_with_mask(q, index_q, pool, table, requests, topk=3)
    torch.testing.assert_close(out.double(), right, **CLOSE)
    torch.testing.assert_close(index_out.double(), right_index, **CLOSE)
    dense, _ = dense_with_mask(q, index_q, pool, table, requests, topk=99)
    assert (out - dense).abs().max() > 0.05


def test_decode_is_an_extend_of_one_row() -> None:
    """And a layer without an index value returns none and stores none."""
    pool, table, batch = SparsePool(), slot_table(), decode([1], [6])
    batch.out_cache_loc = table[1, 5:6].long()
    made = sparse_backend(pool, table, disable_value_layer_ids={0})
    made.init_forward_metadata_out_graph(batch)
    q, index_q = torch.randn(1, HEADS, HEAD_DIM), torch.randn(1, 2, HEAD_DIM)
    k = torch.randn(1, KV_HEADS, HEAD_DIM)
    index_out, out = made.forward_decode(q, k, k, LAYER, batch, idx_q=index_q, idx_k=index_q[:, :1], idx_v=None)
    assert index_out is None and not pool.stored_index_value
    torch.testing.assert_close(out.double(), dense_with_mask(q, index_q, pool, table, [(1, 1, 5)], 3)[0], **CLOSE)


def test_other_models_are_wrapped_by_sglang(monkeypatch) -> None:
    """Taking over a hybrid model that is not M3 would give it the wrong attention."""
    from sglang.srt.configs import model_config

    runner = SimpleNamespace(device="cpu", model_config=SimpleNamespace(hf_config=None))
    monkeypatch.setattr(model_config, "is_minimax_sparse", lambda config: False)
    assert sparse_attention.around_wrapper(lambda runner, full: ("original", full), runner, "full") == (
        "original",
        "full",
    )
    monkeypatch.setattr(model_config, "is_minimax_sparse", lambda config: True)
    runner.device = "cuda"
    assert sparse_attention.around_wrapper(lambda runner, full: "original", runner, "full") == "original"
