"""MiniMax-M3's block-sparse attention in torch; SGLang has it as Triton kernels only.

An index branch scores every visible key with its own small heads. Per query, the blocks of keys with the best scores
are kept (a block's score is the maximum or log-sum-exp of its keys'), the first and the nearest blocks always among
them; the main heads attend to the kept blocks alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.minimax_sparse_backend import MiniMaxSparseAttnBackend

from sglang_dspark.serving.cpu.attention import requests_of, visible_keys

# Above any score of a key, and in this order: the first blocks, then the nearest.
_INIT_SCORE, _LOCAL_SCORE = 1e30, 1e29


def select_blocks(
    scores: torch.Tensor,  # [heads, Q, keys] fp32, -inf where a key is not visible
    query_positions: torch.Tensor,  # [Q] int
    *,
    block_size: int,
    num_selected: int,
    num_init: int,
    num_local: int,
    score_type: str,
) -> torch.Tensor:  # [heads, Q, blocks] bool
    """The blocks of `block_size` keys that each query attends to; init and local blocks count as selected ones."""
    heads, num_queries, num_keys = scores.shape
    num_blocks = -(-num_keys // block_size)
    padded = F.pad(scores, (0, num_blocks * block_size - num_keys), value=float("-inf"))
    grouped = padded.view(heads, num_queries, num_blocks, block_size)
    block_scores = grouped.amax(-1) if score_type == "max" else grouped.logsumexp(-1)
    blocks = torch.arange(num_blocks)
    own = (query_positions // block_size).unsqueeze(1)
    reachable = blocks <= own
    block_scores = block_scores.masked_fill(blocks > own - num_local, _LOCAL_SCORE)
    block_scores = block_scores.masked_fill(blocks < num_init, _INIT_SCORE)
    block_scores = block_scores.nan_to_num(nan=-_INIT_SCORE).masked_fill(~reachable, float("-inf"))
    best = block_scores.topk(min(num_selected, num_blocks), dim=-1).indices
    selected = torch.zeros_like(block_scores, dtype=torch.bool).scatter_(-1, best, True)
    return selected & reachable


class CpuMiniMaxSparseBackend(MiniMaxSparseAttnBackend):
    """SGLang's sparse backend with its settings and pools, and torch in place of its kernels."""

    needs_cpu_seq_lens = False

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Read the batch's requests once for all layers."""
        self._requests = requests_of(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """The same; there are no graphs on the CPU."""
        self._requests = requests_of(forward_batch)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Nothing: there are no graphs on the CPU."""

    def forward_decode(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, torch.Tensor]:
        """A decode batch is an extend batch of one query row a request."""
        return self.forward_extend(*args, **kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,  # [T, heads, D]
        k: torch.Tensor,  # [T, KV heads, D]
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        *,
        idx_q: torch.Tensor,  # [T, index heads, index D]
        idx_k: torch.Tensor,  # [T, 1, index D]
        idx_v: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The index branch's output (None where the layer has no index value) and the main branch's, each [T, -1]."""
        has_value = layer.layer_id not in self.disable_value_layer_ids
        self.kv_pool.set_fused_kv_index_buffer(
            layer,
            forward_batch.out_cache_loc,
            k,
            v,
            idx_k,
            idx_v if has_value else None,
            layer.k_scale_float,
            layer.v_scale_float,
            layer.idx_k_scale_float,
            layer.idx_v_scale_float,
        )
        out = q.new_zeros(q.shape[0], q.shape[1], v.shape[-1])
        index_out = q.new_zeros(idx_q.shape) if has_value else None
        done = 0
        for request in self._requests:
            here = slice(done, done + request.num_queries)
            index_rows = None if index_out is None else index_out[here]
            out[here] = self._attend(q[here], idx_q[here], index_rows, layer, request)
            done += request.num_queries
        return None if index_out is None else index_out.flatten(1), out.flatten(1)

    def _attend(self, q: Any, idx_q: Any, index_out: Any, layer: Any, request: Any) -> torch.Tensor:
        """One request's query rows; the index branch's output is written to `index_out` where there is one."""
        layer_id = layer.layer_id
        keys, values = self.kv_pool.get_kv_buffer(layer_id)
        row, num_queries, num_context = request
        slots = self.req_to_token[row, : num_context + num_queries].long()
        causal = visible_keys(num_queries, num_context, causal=True)

        index_keys = self.kv_pool.get_index_k_buffer(layer_id)[slots, 0].float()
        scores = idx_q.movedim(0, 1).float() @ index_keys.T * idx_q.shape[-1] ** -0.5
        scores = scores.masked_fill(~causal, float("-inf"))
        if index_out is not None:
            index_values = self.kv_pool.get_index_kv_buffer(layer_id)[1][slots, 0].float()
            index_out.copy_((scores.softmax(-1) @ index_values).movedim(0, 1))
        blocks = select_blocks(
            scores,
            torch.arange(num_context, num_context + num_queries),
            block_size=self.block_size_k,
            num_selected=self.topk_blocks,
            num_init=self.init_blocks,
            num_local=self.local_blocks,
            score_type=self.score_type,
        )
        num_kv_heads = keys.shape[1]
        if blocks.shape[0] > num_kv_heads:
            # Index heads that share a KV head pool what they selected.
            blocks = blocks.unflatten(0, (num_kv_heads, -1)).any(1)
        mask = blocks.repeat_interleave(self.block_size_k, dim=-1)[..., : slots.numel()] & causal
        out = F.scaled_dot_product_attention(
            q.movedim(0, 1)[None],
            keys[slots].to(q.dtype).movedim(0, 1)[None],
            values[slots].to(q.dtype).movedim(0, 1)[None],
            attn_mask=mask.repeat_interleave(q.shape[1] // mask.shape[0], dim=0)[None],
            scale=layer.scaling,
            enable_gqa=q.shape[1] != num_kv_heads,
        )
        return out[0].movedim(0, 1)


def around_wrapper(original: Callable[[Any, Any], Any], runner: Any, full_attn_backend: Any) -> Any:
    """A MiniMax-M3 target's dense and sparse layers on the CPU; every other model as SGLang wraps it."""
    from sglang.srt.configs.model_config import is_minimax_sparse
    from sglang.srt.layers.attention.minimax_sparse_backend import MiniMaxHybridAttnBackend

    if runner.device != "cpu" or not is_minimax_sparse(runner.model_config.hf_config):
        return original(runner, full_attn_backend)
    sparse = CpuMiniMaxSparseBackend(runner)
    return MiniMaxHybridAttnBackend(full_attn_backend, sparse, sparse.sparse_layer_ids)
