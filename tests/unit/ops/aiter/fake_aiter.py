"""AITER as our adapters see it: the functions with their real signatures (v0.1.20.post1), computing in torch on a CPU.

Written from what AITER's functions are documented and read to do, not from our law: rounding points, weights, layouts
and the reading of cos and sin are theirs. Functions that AITER compiles hide behind ``(*args, **kwargs)`` and register
their schema with torch, here as there.
"""

from __future__ import annotations

import inspect
import types

import torch
from torch import Tensor

BF16 = torch.bfloat16
LIBRARY = torch.library.Library("aiter", "FRAGMENT")
CALLS: list[str] = []


def compiled(function):
    """What `compile_ops` makes of a declaration: registered with torch, its parameters hidden."""
    name = function.__name__
    if not hasattr(torch.ops.aiter, name):
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args="unknown"))
        LIBRARY.impl(name, function, "CPU")

    def hidden(*args, **kwargs):
        CALLS.append(name)
        return getattr(torch.ops.aiter, name)(*args, **kwargs)

    return hidden


def gemma_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normed, in fp32."""
    assert weight.dtype in (BF16, torch.float32)
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + weight.float())


def turn(x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool) -> Tensor:
    """Rotated, in fp32. x [T, H, D]; cos and sin [T, R/2]."""
    half, x = cos.shape[-1], x.float()
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    rotary = x[..., : 2 * half]
    first, second = (rotary[..., :half], rotary[..., half:]) if is_neox else (rotary[..., 0::2], rotary[..., 1::2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)
    return torch.cat((turned, x[..., 2 * half :]), -1)


def cut(x: Tensor) -> Tensor:
    """fp32 to bf16 with the lower bits cut off, as on gfx942."""
    return (x.float().view(torch.int32) & -65536).view(torch.float32).to(BF16)


def to_cache(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype == x.dtype:
        return x
    largest = torch.finfo(dtype).max
    return (x.float() * (1 / torch.tensor(scale))).clamp(-largest, largest).to(dtype)


def scatter(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """cache [slots, H, D]."""
    assert slots.dtype == torch.int64 and slots.is_contiguous()
    assert int(slots.max()) < cache.shape[0], "wild write"
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache.view(torch.uint8)[slot] = rows.contiguous().view(torch.uint8)[token]


@compiled
def fused_qk_norm_mrope_3d_cache_pts_quant_shuffle(
    qkv: Tensor,
    qw: Tensor,
    kw: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    num_tokens: int,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_size: int,
    is_neox_style: bool,
    mrope_section_: list[int],
    is_interleaved: bool,
    eps: float,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    per_tensor_k_scale: Tensor,
    per_tensor_v_scale: Tensor,
    k_out: Tensor | None,
    v_out: Tensor | None,
    return_kv: bool,
    use_shuffle_layout: bool,
    block_size: int,
    x: int,
    rotary_dim: int = 0,
    gemma_norm: bool = False,
) -> None:
    assert qkv.is_contiguous() and kw.is_contiguous() and cos_sin.is_contiguous() and slot_mapping.is_contiguous()
    assert k_cache.is_contiguous() and v_cache.is_contiguous() and positions.dim() == 2
    assert qw.dtype == kw.dtype == cos_sin.dtype == qkv.dtype == BF16
    assert head_size in (64, 128, 256) and sum(mrope_section_) == rotary_dim // 2 and len(mrope_section_) == 3
    assert gemma_norm and is_neox_style and not (is_interleaved or use_shuffle_layout or return_kv)
    assert (block_size, x, num_heads_q) == (0, 0, 0) and per_tensor_k_scale.dtype == torch.float32
    heads = qkv.view(num_tokens, num_heads_q + num_heads_k + num_heads_v, head_size)
    section = torch.tensor([0] * mrope_section_[0] + [1] * mrope_section_[1] + [2] * mrope_section_[2])
    columns = torch.arange(rotary_dim // 2)
    rows = positions[section].T  # [T, R/2]
    cos, sin = cos_sin[rows, columns], cos_sin[rows, columns + rotary_dim // 2]
    k = globals()["gemma_norm"](heads[:, :num_heads_k], kw, eps).to(BF16)
    k = turn(k, cos, sin, is_neox=True).to(BF16)
    scatter(k_cache, slot_mapping, to_cache(k, k_cache.dtype, float(per_tensor_k_scale)))
    scatter(v_cache, slot_mapping, to_cache(heads[:, num_heads_k:], v_cache.dtype, float(per_tensor_v_scale)))


def fused_qknorm_idxrqknorm(
    qkv: Tensor,
    q_norm_weight: Tensor,
    k_norm_weight: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    num_heads: int,
    num_kv_heads: int,
    rotary_dim: int,
    eps: float,
    index_q_norm_weight: Tensor | None = None,
    index_k_norm_weight: Tensor | None = None,
    num_index_heads: int = 0,
    slot_mapping: Tensor | None = None,
    kv_cache_k: Tensor | None = None,
    kv_cache_v: Tensor | None = None,
    index_cache: Tensor | None = None,
    block_size: int = 0,
    q_out: Tensor | None = None,
    index_q_out: Tensor | None = None,
    index_slot_mapping: Tensor | None = None,
    kv_cache_dtype: str = "auto",
    index_cache_dtype: str | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    asm_layout: bool = False,
) -> None:
    CALLS.append("fused_qknorm_idxrqknorm")
    assert qkv.is_contiguous() and qkv.shape[1] == (num_heads + 2 * num_kv_heads) * 128 and num_heads > 0
    assert positions.dim() == 1 and positions.is_contiguous() and cos_sin_cache.is_contiguous()
    assert cos_sin_cache.dtype == q_norm_weight.dtype == k_norm_weight.dtype == qkv.dtype == BF16
    assert cos_sin_cache.shape[1] == rotary_dim and rotary_dim % 8 == 0 and kv_cache_dtype == "auto"
    assert (num_index_heads, asm_layout) == (0, False)
    for cache in (kv_cache_k, kv_cache_v):
        assert cache.shape[1:] == (block_size, num_kv_heads, 128) and block_size == 1 and cache.dtype == BF16
    heads = qkv.view(-1, num_heads + 2 * num_kv_heads, 128)
    cos, sin = cos_sin_cache[positions].chunk(2, -1)
    k = gemma_norm(heads[:, num_heads : num_heads + num_kv_heads], k_norm_weight, eps)
    scatter(kv_cache_k[:, 0], slot_mapping, turn(k, cos, sin, is_neox=True).to(BF16))
    scatter(kv_cache_v[:, 0], slot_mapping, heads[:, num_heads + num_kv_heads :])


def rms_norm_opus(
    out: Tensor, input: Tensor, weight: Tensor, epsilon: float, model_sensitive: int = 0, gemma_norm: bool = False
) -> None:
    CALLS.append("rms_norm_opus")
    assert out.is_contiguous() and input.dim() == 2 and input.stride(-1) == 1 and gemma_norm
    assert weight.dtype == input.dtype == BF16 and weight.shape[-1] == input.shape[-1] and model_sensitive == 0
    out.copy_(cut(globals()["gemma_norm"](input, weight, epsilon)))


def rope_cached_positions_fwd_inplace(
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> Tensor:
    CALLS.append("rope_cached_positions_fwd_inplace")
    assert input.dim() == 4 and positions.dim() == 2 and positions.stride(1) == 1 and positions.shape == input.shape[:2]
    assert cos.dim() == 4 and cos.is_contiguous() and sin.is_contiguous()
    assert reuse_freqs_front_part and not nope_first
    rows = positions[:, 0]
    input[:, 0] = cut(turn(input[:, 0], cos[rows, 0, 0], sin[rows, 0, 0], rotate_style == 0))


@compiled
def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    assert kv_cache_dtype == "auto" and float(k_scale) == float(v_scale) == 1.0
    assert key_cache.dim() == 4 and key_cache.shape[1] == 1 and key_cache.stride(0) == value_cache.stride(0)
    assert key.stride()[1:] == value.stride()[1:] == (key.shape[2], 1)
    scatter(key_cache[:, 0], slot_mapping, key)
    scatter(value_cache[:, 0], slot_mapping, value)


def fused_qkv_split_qk_norm_rope_cache(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    qh: int,
    kvh: int,
    head_dim: int,
    is_neox: bool = True,
    offsets: Tensor = None,
    reuse_freqs_front_part: bool = True,
    attn_output_gate: bool = False,
    k_scale: Tensor = None,
    v_scale: Tensor = None,
    eps: float = 1e-5,
    gated_qkv_layout: str = "interleaved",
    kv_cache_layout: str = "HND",
):
    CALLS.append("fused_qkv_split_qk_norm_rope_cache")
    assert (
        kv_cache_layout == "NHD" and key_cache.shape == value_cache.shape and key_cache.shape[1:] == (1, kvh, head_dim)
    )
    assert reuse_freqs_front_part and not attn_output_gate and offsets is k_scale is v_scale is None
    assert qh % kvh == 0 and qkv.shape[1] == (qh + 2 * kvh) * head_dim
    heads = qkv.unflatten(1, (-1, head_dim))
    normed = [gemma_norm(heads[:, :qh], q_weight, eps), gemma_norm(heads[:, qh : qh + kvh], k_weight, eps)]
    c, s = cos[positions], sin[positions]
    # The element itself rounded, its partner not; the kernel's sum in fp32.
    q, k = (turn(x, c, s, is_neox) + _own_part(x.to(BF16).float() - x, c) for x in normed)
    q, k, v = q.to(BF16), k.to(BF16), heads[:, qh + kvh :].clone()
    inside = torch.where(slot_mapping < key_cache.shape[0], slot_mapping, -1)
    scatter(key_cache[:, 0], inside, k)
    scatter(value_cache[:, 0], inside, v)
    return q, k, v


def _own_part(moved: Tensor, cos: Tensor) -> Tensor:
    """What rounding an element moves the rotated element itself by (NeoX); the tail moves as it is."""
    half = cos.shape[-1]
    own = torch.cat((cos.float(), cos.float(), torch.ones(cos.shape[0], moved.shape[-1] - 2 * half)), -1)
    return moved * own[:, None]


def modules(**replaced) -> dict[str, types.ModuleType]:
    """The modules to put into `sys.modules`; ``replaced`` functions stand for the real ones, None leaves one out."""
    triton_path = "aiter.ops.triton.rope.fused_qkv_split_qk_norm_rope_cache"
    names = {
        "aiter": (
            fused_qk_norm_mrope_3d_cache_pts_quant_shuffle,
            fused_qknorm_idxrqknorm,
            rms_norm_opus,
            rope_cached_positions_fwd_inplace,
            reshape_and_cache_flash,
        ),
        triton_path: (fused_qkv_split_qk_norm_rope_cache,),
    }
    parents = ["aiter.ops", "aiter.ops.triton", "aiter.ops.triton.rope"]
    found = {name: types.ModuleType(name) for name in (*names, *parents)}
    for path, functions in names.items():
        for function in functions:
            name = next(name for name, value in globals().items() if value is function)
            if (stands := replaced.get(name, function)) is not None:
                setattr(found[path], name, stands)
    return found


def without(function, *parameters: str):
    """The function with parameters taken out of its signature, as an older release has it."""
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name not in parameters]

    def older(*args, **kwargs):
        raise AssertionError("called with a signature that lacks what the adapter passes")

    older.__signature__ = signature.replace(parameters=kept)
    return older
