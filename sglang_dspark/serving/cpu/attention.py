"""Attention on the CPU engine, for every batch that DSPARK makes.

SGLang's `torch_native` backend has no metadata for a verify batch. This subclass reads any batch as (request row,
query length, context length) and masks accordingly: causal for the target, whose verify window sees the context and
its own earlier rows; no mask for the draft (ENCODER_ONLY), whose block sees the context and all of itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

BACKEND_NAME = "torch_native"


class Request(NamedTuple):
    """One request of a batch: its row in the request table, its query rows, and the tokens before them."""

    row: int
    num_queries: int
    num_context: int


def requests_of(forward_batch: Any) -> list[Request]:
    """The requests of a batch of any mode, in the order of its query rows."""
    mode = forward_batch.forward_mode
    rows = forward_batch.req_pool_indices.tolist()
    lengths = forward_batch.seq_lens.tolist()
    if mode.is_target_verify():
        # seq_lens leaves the window out here.
        layout = forward_batch.spec_info.ragged_verify_layout
        if layout is None:
            widths = [int(forward_batch.spec_info.draft_token_num)] * len(rows)
        else:
            widths = layout.verify_lens.tolist()
        return [Request(*each) for each in zip(rows, widths, lengths, strict=True)]
    if mode.is_decode_or_idle():
        return [Request(row, 1, length - 1) for row, length in zip(rows, lengths, strict=True)]
    widths, contexts = forward_batch.extend_seq_lens.tolist(), forward_batch.extend_prefix_lens.tolist()
    return [Request(*each) for each in zip(rows, widths, contexts, strict=True)]


def visible_keys(num_queries: int, num_context: int, *, causal: bool) -> torch.Tensor | None:
    """Which keys each query row sees, [Q, context + Q] bool; None where it sees all."""
    if not causal:
        return None
    keys = torch.arange(num_context + num_queries)
    return keys <= torch.arange(num_context, num_context + num_queries).unsqueeze(1)


class CpuAttnBackend(TorchNativeAttnBackend):
    """`torch_native` with verify batches, uniform and ragged, and non-causal draft blocks."""

    needs_cpu_seq_lens = False

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Read the batch's requests once for all layers."""
        super().init_forward_metadata(forward_batch)
        self._requests = requests_of(forward_batch)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> torch.Tensor:
        """Attention of a prefill, verify or draft batch; rows beyond the batch's requests are padding and give 0."""
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
        queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)  # [T, heads, D]
        out = q.new_zeros(queries.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        causal = layer.attn_type != AttentionType.ENCODER_ONLY
        req_to_token = self.req_to_token_pool.req_to_token
        done = 0
        for row, num_queries, num_context in self._requests:
            slots = req_to_token[row, : num_context + num_queries].long()
            here = slice(done, done + num_queries)
            out[here] = F.scaled_dot_product_attention(
                queries[here].movedim(0, 1)[None],
                _read(keys, slots, layer.k_scale_float, q.dtype).movedim(0, 1)[None],
                _read(values, slots, layer.v_scale_float, q.dtype).movedim(0, 1)[None],
                attn_mask=visible_keys(num_queries, num_context, causal=causal),
                scale=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
            )[0].movedim(0, 1)
            done += num_queries
        return out.view(q.shape[0], -1)


def _read(pool: torch.Tensor, slots: torch.Tensor, scale: float | None, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a pool, [N, H, D]; an fp8 pool holds value / scale."""
    if pool.element_size() > 1:
        return pool[slots].to(dtype)
    # torch indexes fp8 as bytes only.
    rows = pool.view(torch.uint8)[slots].view(pool.dtype).float()
    return (rows if scale is None else rows * scale).to(dtype)


def register() -> None:
    """Take the `torch_native` backend's place, for the target and for drafts."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(BACKEND_NAME)(CpuAttnBackend)
    if BACKEND_NAME not in choices.DRAFT_ATTENTION_BACKEND_CHOICES:
        choices.add_draft_attention_backend_choices([BACKEND_NAME])
