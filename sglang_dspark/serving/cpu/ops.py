"""Torch versions of the four `sgl_kernel` CPU ops that SGLang's speculative scheduling calls.

The published wheels of `sgl_kernel` do not ship them. They are defined only where they are missing.
"""

from __future__ import annotations

import ctypes

import torch

_library: torch.library.Library | None = None


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,  # [B] int
    req_to_token: torch.Tensor,  # [requests, context] int, written
    start_offset: torch.Tensor,  # [B] int
    end_offset: torch.Tensor,  # [B] int
    out_cache_loc: torch.Tensor,  # [sum of widths] int
    pool_len: int,
) -> None:
    """Enter new slots in the request table: request b's columns start..end take the next end - start slots."""
    del pool_len
    taken = 0
    for row, start, end in _windows(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,  # [B] int
    req_to_token: torch.Tensor,  # [requests, context] int
    start_offset: torch.Tensor,  # [B] int
    end_offset: torch.Tensor,  # [B] int
    out_cache_loc: torch.Tensor,  # [sum of widths] int, written
    pool_len: int,
) -> None:
    """Read slots back from the request table: the inverse of `assign_req_to_token_pool_cpu`."""
    del pool_len
    taken = 0
    for row, start, end in _windows(req_pool_indices, start_offset, end_offset):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,  # [B] int
    req_to_token: torch.Tensor,  # [requests, context] int
    seq_lens: torch.Tensor,  # [B] int
    out_cache_loc: torch.Tensor,  # [B * topk * num_steps] int, written
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The slots of the `topk * num_steps` columns behind each request's sequence."""
    width = topk * num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + width, out_cache_loc.view(-1), pool_len
    )


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,  # [buffers] uint64 addresses
    strides: torch.Tensor,  # [buffers] bytes of one slot
    tgt_loc: torch.Tensor,  # [N] int
    src_loc: torch.Tensor,  # [N] int
) -> None:
    """Move slots within every buffer, all sources read before any target is written."""
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        address &= (1 << 64) - 1  # a signed view of an unsigned pointer
        rows = [ctypes.string_at(address + slot * stride, stride) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + slot * stride, row, stride)


def _windows(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> list[tuple[int, int, int]]:
    windows = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [(row, start, max(start, end)) for row, start, end in windows]


_ASSIGN = "(Tensor req_pool_indices, Tensor(a!) req_to_token, Tensor start_offset, Tensor end_offset, "
_READ = "(Tensor req_pool_indices, Tensor req_to_token, Tensor start_offset, Tensor end_offset, "
_OPS = (
    (assign_req_to_token_pool_cpu, _ASSIGN + "Tensor out_cache_loc, int pool_len) -> ()"),
    (assign_extend_cache_locs_cpu, _READ + "Tensor(a!) out_cache_loc, int pool_len) -> ()"),
    (
        assign_draft_cache_locs_contiguous_cpu,
        "(Tensor req_pool_indices, Tensor req_to_token, Tensor seq_lens, Tensor(a!) out_cache_loc, int pool_len, "
        "int topk, int num_steps) -> ()",
    ),
    (copy_all_layer_kv_cache_cpu, "(Tensor data_ptrs, Tensor strides, Tensor tgt_loc, Tensor src_loc) -> ()"),
)


def register() -> None:
    """Define the missing ops as `torch.ops.sgl_kernel.*` on the CPU; a second call does nothing."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("sgl_kernel", "FRAGMENT")
    for function, signature in _OPS:
        name = function.__name__
        if not hasattr(torch.ops.sgl_kernel, name):
            _library.define(name + signature)
            _library.impl(name, function, "CPU")
