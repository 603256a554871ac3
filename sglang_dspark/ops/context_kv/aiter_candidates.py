"""The ways to write one layer of context KV with AITER's functions: what each needs, refuses, and is called with.

Best first. All three skip negative slots; the fused two read a skipped row's cos and sin all the same. What each does
was read in AITER's sources, commit e4048607a5; nothing here has run on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_dspark.ops.aiter.signatures import Call, Wanted
from sglang_dspark.ops.aiter.trial import Bound
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES, ContextKVSpec, ContextKVTables

LayerWrite = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]  # kv, positions [T], slots [L, T]

MROPE = Wanted(
    "aiter",
    "fused_qk_norm_mrope_3d_cache_pts_quant_shuffle",
    ("qkv", "qw", "kw", "cos_sin", "positions", "num_tokens", "num_heads_q", "num_heads_k", "num_heads_v", "head_size",
     "is_neox_style", "mrope_section_", "is_interleaved", "eps", "q_out", "k_cache", "v_cache", "slot_mapping",
     "per_tensor_k_scale", "per_tensor_v_scale", "k_out", "v_out", "return_kv", "use_shuffle_layout", "block_size", "x",
     "rotary_dim", "gemma_norm"),
)  # fmt: skip
QKNORM = Wanted(
    "aiter",
    "fused_qknorm_idxrqknorm",
    ("qkv", "q_norm_weight", "k_norm_weight", "cos_sin_cache", "positions", "num_heads", "num_kv_heads", "rotary_dim",
     "eps", "slot_mapping", "kv_cache_k", "kv_cache_v", "block_size"),
)  # fmt: skip
NORM = Wanted("aiter", "rms_norm_opus", ("out", "input", "weight", "epsilon", "gemma_norm"))
ROPE = Wanted(
    "aiter",
    "rope_cached_positions_fwd_inplace",
    ("input", "cos", "sin", "positions", "rotate_style", "reuse_freqs_front_part", "nope_first"),
)
STORE = Wanted(
    "aiter",
    "reshape_and_cache_flash",
    ("key", "value", "key_cache", "value_cache", "slot_mapping", "kv_cache_dtype", "k_scale", "v_scale"),
)


@dataclass(frozen=True)
class Candidate:
    """A way to write one layer after another.

    ``refusals(spec)`` and ``table_refusals(spec, tables)``: what it does not cover; ``bind(spec, tables, weights,
    *calls)`` gives the function that writes all layers with the norm weights [L, D].
    """

    name: str
    wanted: tuple[Wanted, ...]
    refusals: Callable[[ContextKVSpec], list[str]]
    table_refusals: Callable[[ContextKVSpec, ContextKVTables], list[str]]
    bind: Callable[..., LayerWrite]


# (A) Norm, rotation and store in one launch a layer; the only one for fp8.


def _mrope_refusals(spec: ContextKVSpec) -> list[str]:
    reasons = []
    if spec.head_dim not in (64, 128, 256):
        reasons.append(f"head_dim {spec.head_dim} is not covered, only 64, 128, 256")
    elif spec.rotary_dim % (spec.head_dim // 16):
        reasons.append(f"rotary_dim {spec.rotary_dim} is no multiple of {spec.head_dim // 16}")
    if not spec.is_neox:
        reasons.append("interleaved rotary is not covered: it reads cos and sin past their row")
    return reasons


def _mrope_table_refusals(spec: ContextKVSpec, tables: ContextKVTables) -> list[str]:
    reasons = []
    # The commit named above follows strides; no release did until then, and the signature is the same.
    if not all(pool.is_contiguous() for pool in (*tables.k_pools, *tables.v_pools)):
        reasons.append("pool rows are apart, and released versions take contiguous pools only")
    access_bytes = spec.head_dim // 32 * spec.pool_dtype.itemsize
    if (found := tables.row_alignment_bytes(access_bytes)) < access_bytes:
        reasons.append(f"pool rows are aligned to {found} bytes, not to {access_bytes}")
    return reasons


def _bind_mrope(spec: ContextKVSpec, tables: ContextKVTables, weights: torch.Tensor, fused: Call) -> LayerWrite:
    ones = (1.0,) * spec.num_layers
    # The host reads the scales before it launches, so they stay on the CPU.
    k_scales, v_scales = (
        torch.tensor(scales or ones, device="cpu").split(1) for scales in (spec.k_scales, spec.v_scales)
    )
    constants = {
        "cos_sin": tables.cos_sin.to(spec.kv_dtype).contiguous(),
        "num_heads_q": 0,
        "num_heads_k": spec.num_kv_heads,
        "num_heads_v": spec.num_kv_heads,
        "head_size": spec.head_dim,
        "rotary_dim": spec.rotary_dim,
        # Every pair of partners belongs to the first of the three position rows.
        "mrope_section_": [spec.rotary_dim // 2, 0, 0],
        "is_neox_style": True,
        "is_interleaved": False,
        "eps": spec.eps,
        "gemma_norm": True,
        "q_out": weights.new_empty(1),  # no query heads: nothing is stored there
        "k_out": None,
        "v_out": None,
        "return_kv": False,
        "use_shuffle_layout": False,
        "block_size": 0,  # flat slots
        "x": 0,
    }

    def write(kv: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        qkv = kv.flatten(2).transpose(0, 1).contiguous()  # [L, T, 2 * H * D]: K's heads, then V's
        for layer in range(spec.num_layers):
            fused(
                qkv=qkv[layer],
                qw=weights[layer],
                kw=weights[layer],
                positions=positions.expand(3, -1),
                num_tokens=kv.shape[0],
                k_cache=tables.k_pools[layer],
                v_cache=tables.v_pools[layer],
                slot_mapping=slots[layer],
                per_tensor_k_scale=k_scales[layer],
                per_tensor_v_scale=v_scales[layer],
                **constants,
            )

    return write


# (B) The same in one launch a layer, with one query head for nothing.


def _qknorm_refusals(spec: ContextKVSpec) -> list[str]:
    reasons = _not_fp8(spec, "it has no scale of a whole pool")
    if spec.head_dim != 128:
        reasons.append(f"head_dim {spec.head_dim} is not covered, only 128")
    if spec.rotary_dim % 8:
        reasons.append(f"rotary_dim {spec.rotary_dim} is no multiple of 8")
    if not spec.is_neox:
        reasons.append("interleaved rotary is not covered")
    return reasons


def _qknorm_table_refusals(spec: ContextKVSpec, tables: ContextKVTables) -> list[str]:
    # V is copied 8 bytes a lane.
    found = tables.row_alignment_bytes(8)
    return [f"pool rows are aligned to {found} bytes, not to 8"] if found < 8 else []


def _bind_qknorm(spec: ContextKVSpec, tables: ContextKVTables, weights: torch.Tensor, fused: Call) -> LayerWrite:
    cos_sin = tables.cos_sin.to(spec.kv_dtype).contiguous()
    heads = 1 + 2 * spec.num_kv_heads

    def write(kv: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        # The query head's values are normed in place and read by nobody; any will do.
        qkv = kv.new_empty(spec.num_layers, kv.shape[0], heads, spec.head_dim)
        qkv[:, :, 1:] = kv.flatten(2, 3).transpose(0, 1)  # K's heads, then V's
        for layer in range(spec.num_layers):
            fused(
                qkv=qkv[layer].flatten(1),
                q_norm_weight=weights[layer],
                k_norm_weight=weights[layer],
                cos_sin_cache=cos_sin,
                positions=positions,
                num_heads=1,
                num_kv_heads=spec.num_kv_heads,
                rotary_dim=spec.rotary_dim,
                eps=spec.eps,
                slot_mapping=slots[layer],
                kv_cache_k=tables.k_pools[layer][:, None],  # pages of one slot
                kv_cache_v=tables.v_pools[layer][:, None],
                block_size=1,
            )

    return write


# (C) Norm, rotation and store apart: three launches and a copy a layer.


def _unfused_refusals(spec: ContextKVSpec) -> list[str]:
    return _not_fp8(spec, "it converts without clamping")


def _unfused_table_refusals(spec: ContextKVSpec, tables: ContextKVTables) -> list[str]:
    reasons = []
    if any(k.stride(0) != v.stride(0) for k, v in zip(tables.k_pools, tables.v_pools, strict=True)):
        reasons.append("rows of K and V are different distances apart")
    if tables.cos_sin.nbytes // 2 >= 2**31:
        reasons.append("cos or sin is 2 GiB or more, and offsets are 32 bits wide")
    return reasons


def _bind_unfused(
    spec: ContextKVSpec, tables: ContextKVTables, weights: torch.Tensor, norm: Call, rope: Call, store: Call
) -> LayerWrite:
    cos, sin = (half[:, None, None].contiguous() for half in tables.cos_sin.chunk(2, dim=1))  # [P, 1, 1, R/2]
    one = torch.ones(1, device=cos.device)

    def write(kv: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        for layer in range(spec.num_layers):
            k = torch.empty_like(kv[:, layer, 0], memory_format=torch.contiguous_format)  # [T, H, D]
            norm(
                out=k.flatten(0, 1),
                input=kv[:, layer, 0].reshape(-1, spec.head_dim),
                weight=weights[layer],
                epsilon=spec.eps,
                gemma_norm=True,
            )
            rope(
                input=k[:, None],  # [T, 1, H, D]
                cos=cos,
                sin=sin,
                positions=positions.view(-1, 1),
                rotate_style=0 if spec.is_neox else 1,
                reuse_freqs_front_part=True,  # cos and sin are R/2 wide
                nope_first=False,
            )
            store(
                key=k,
                value=kv[:, layer, 1],
                key_cache=tables.k_pools[layer][:, None],  # pages of one slot
                value_cache=tables.v_pools[layer][:, None],
                slot_mapping=slots[layer],
                kv_cache_dtype="auto",
                k_scale=one,
                v_scale=one,
            )

    return write


def _not_fp8(spec: ContextKVSpec, why: str) -> list[str]:
    return [f"fp8 pool ({spec.pool_dtype}) is not covered: {why}"] if spec.pool_dtype != spec.kv_dtype else []


CANDIDATES = (
    Candidate("fused_qk_norm_mrope", (MROPE,), _mrope_refusals, _mrope_table_refusals, _bind_mrope),
    Candidate("fused_qknorm_idxrqknorm", (QKNORM,), _qknorm_refusals, _qknorm_table_refusals, _bind_qknorm),
    Candidate("norm_rope_store", (NORM, ROPE, STORE), _unfused_refusals, _unfused_table_refusals, _bind_unfused),
)

# A unit of bf16 is at most 2^-7 of a value, and rounding moves it by half of one.
BOUNDS = {
    "fused_qk_norm_mrope": Bound(
        3 * 2**-7,
        3,
        "rounds where the law does, but reads cos and sin in bf16: half a unit, and a flip at each of both roundings",
    ),
    "fused_qknorm_idxrqknorm": Bound(
        3 * 2**-7,
        3,
        "does not round between norm and rotation, and reads cos and sin in bf16: half a unit each, then one rounding",
    ),
    "norm_rope_store": Bound(
        3 * 2**-7,
        3,
        "rounds where the law does, on gfx942 by cutting off the lower bits: a unit at each of the two roundings, and "
        "the law's own half unit",
    ),
}
FP8_BOUND = Bound(
    2**-3 + 3 * 2**-7,
    1,
    "the bound in bf16, and one number further in fp8: the scale's reciprocal is multiplied with, and what is rounded "
    "differs. A NaN may be stored as a number, and e4m3fnuz's -0 as it comes",
)


def bound_of(candidate: str, spec: ContextKVSpec) -> Bound:
    """How far K (and V in an fp8 pool) may be from the law. V in a bf16 pool is a copy, bit for bit."""
    return FP8_BOUND if spec.pool_dtype in FP8_DTYPES.values() else BOUNDS[candidate]
