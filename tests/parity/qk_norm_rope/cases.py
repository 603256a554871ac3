"""The named cases of the query block's op: what each one sets up, and the bug it catches.

As in the context writer's cases: a case is a small value, and `problem` makes the same tensors of it every time, in
whatever process.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec, QKNormRopeTables

BF16, F32 = torch.bfloat16, torch.float32
E4M3FN, E4M3FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


@dataclass(frozen=True)
class Case:
    """One case. ``catches`` is the bug that makes it fail."""

    name: str
    catches: str
    tokens: int = 7
    heads: tuple[int, int] = (4, 2)  # Hq, Hkv
    head_dim: int = 128
    rotary_dim: int = 64
    is_neox: bool = True
    dtype: torch.dtype = BF16
    cos_sin_dtype: torch.dtype = F32
    eps: float = 1e-6
    # "normal", "tiny", "large", "subnormal", "not_finite", "rounds_to_zero", "huge", "zeros", "any_bits"
    values: str = "normal"
    qkv_gap: int = 0  # elements between the tokens of qkv
    pools: bool = True
    pool_dtype: torch.dtype | None = None  # default: dtype
    pool_scales: tuple[float, float] | None = None  # K, V
    pool_padding: tuple[int, int] = (0, 0)  # elements after each row of K and of V
    slots: tuple[int, ...] | None = ()  # default: one after the other from 3; None: no slots
    positions: tuple[int, ...] = ()  # default: spread over the table
    q_fp8_dtype: torch.dtype | None = None
    q_scale: float | None = None
    q_fp8_gap: int = 0  # elements between the tokens of the fp8 query
    # Only a device answers these: rows that break the contract. The CPU raises IndexError.
    breaks_contract: bool = False


NUM_SLOTS = 160
NUM_POSITIONS = 97
FAR = 2**40

CASES = (
    Case("plain", "a rounding point missing or added; Q, K and V mixed up; multiplier or position of another row"),
    Case("no_tokens", "a launch of an empty grid", tokens=0),
    Case("one_token", "a tile that writes past the last token", tokens=1),
    Case("many_tokens", "a grid or an offset computed too small", tokens=96, heads=(8, 1)),
    Case("holes", "a negative slot that is stored (from the pool's end); Q of a skipped token left as it was",
         slots=(5, -1, 9, -1, -7, 2, -1)),
    Case("far_holes", "a negative slot of which only the low half is looked at",
         slots=(5, 3 - FAR, 9, -FAR, -(2**32), 2, 7 - 2**33)),
    Case("all_holes", "slot 0 damaged when nothing is stored", slots=(-1,) * 7),
    Case("slot_zero", "a skipped token that puts back the old value of slot 0 over its owner's",
         slots=(-1, -1, 4, 0, -1, 7, -1)),
    Case("no_slots", "a store without slots, or no norm without a store", slots=None),
    Case("no_pools", "a pool taken for granted", pools=False, slots=None),
    Case("permuted_slots", "rows stored in order instead of by slot", slots=(11, 2, 158, 0, 7, 6, 1)),
    Case("last_slot_and_position", "a bound that is off by one", slots=(NUM_SLOTS - 1, 0, 1, 2, 3, 4, 5),
         positions=(NUM_POSITIONS - 1, 0, 1, 2, 3, 4, NUM_POSITIONS - 1)),
    Case("qkv_rows_apart", "qkv's row stride taken for its width; the gap overwritten", qkv_gap=64),
    Case("odd_qkv_stride", "wide accesses to tokens that are not aligned to them", qkv_gap=3),
    Case("padded_pool_rows", "a row stride taken for H * D; padding that is written", pool_padding=(32, 64)),
    Case("odd_pool_stride", "wide accesses to pool rows that are not aligned to them", pool_padding=(3, 5)),
    Case("eps_matters", "eps left out, added after the root, or to the sum", eps=1e-2, values="tiny"),
    Case("heads_64_4", "a head offset computed too small", heads=(64, 4), tokens=3),
    Case("heads_16_1", "K's place in qkv taken for a multiple of the tile", heads=(16, 1)),
    Case("heads_8_1", "the KV head taken for granted", heads=(8, 1)),
    Case("heads_6_3", "head counts that are no powers of two", heads=(6, 3)),
    Case("heads_1_1", "a token smaller than the tile", heads=(1, 1)),
    Case("dim_64_rotary_16", "constants of D = 128", head_dim=64, rotary_dim=16),
    Case("dim_64_rotary_all", "a tail of no elements", head_dim=64, rotary_dim=64),
    Case("dim_128_rotary_48", "a rotary half that is no power of two", rotary_dim=48),
    Case("dim_128_rotary_all", "a tail of no elements", rotary_dim=128),
    Case("dim_256_rotary_64", "constants of D = 128", head_dim=256, heads=(2, 1)),
    Case("dim_256_rotary_all", "partners in another sixteen of lanes", head_dim=256, rotary_dim=256, heads=(2, 1)),
    Case("dim_96_rotary_32", "a head dimension that is no power of two", head_dim=96, rotary_dim=32, tokens=3),
    Case("interleaved", "partners i, i + R/2 instead of 2i, 2i + 1", is_neox=False),
    Case("interleaved_64", "constants of D = 128", is_neox=False, head_dim=64, rotary_dim=32),
    Case("interleaved_256", "constants of D = 128", is_neox=False, head_dim=256, rotary_dim=96, heads=(2, 1)),
    Case("bf16_cos_sin", "cos and sin read in the wrong width, or rotated in bf16", cos_sin_dtype=BF16),
    Case("not_finite", "a NaN or an infinity that reaches another row", values="not_finite"),
    Case("subnormal", "values below the normal range flushed in V, or lost in Q and K", values="subnormal", eps=1.0),
    Case("fp8_pool", "K or V stored unscaled, or with the other's scale", pool_dtype=E4M3FN, pool_scales=(0.5, 3.0)),
    Case("fp8_pool_without_scales", "a scale taken for granted", pool_dtype=E4M3FN),
    Case("fp8_fnuz_pool", "the other fp8 format; a negative zero, which is NaN in this one", pool_dtype=E4M3FNUZ,
         pool_scales=(0.3, 0.7)),
    Case("fp8_pool_holes", "a skipped token stored in the fp8 path", pool_dtype=E4M3FN, slots=(-1, 9, -1, 0, 2, -1, 7)),
    Case("fp8_saturates", "a value beyond the largest that becomes NaN", values="large", pool_dtype=E4M3FN,
         pool_scales=(1e-3, 1.0), q_fp8_dtype=E4M3FN, q_scale=1e-3),
    Case("fp8_fnuz_saturates", "the other format's largest value", values="large", pool_dtype=E4M3FNUZ,
         pool_scales=(1e-3, 1.0), q_fp8_dtype=E4M3FNUZ, q_scale=1e-3),
    Case("fp8_subnormal", "steps below the format's normal range", pool_dtype=E4M3FN, pool_scales=(100.0, 300.0)),
    Case("fp8_not_finite", "a NaN that becomes a number, an infinity that becomes NaN", values="not_finite",
         pool_dtype=E4M3FN, q_fp8_dtype=E4M3FN),
    Case("fp8_fnuz_not_finite", "a NaN that becomes a number, an infinity that becomes NaN", values="not_finite",
         pool_dtype=E4M3FNUZ, q_fp8_dtype=E4M3FNUZ),
    Case("fp8_odd_pool_stride", "wide accesses to fp8 rows that are not aligned to them", pool_dtype=E4M3FN,
         pool_padding=(3, 5)),
    Case("fp8_query", "the query's scale left out, or K's used; Q in place left out", pool_dtype=E4M3FN,
         pool_scales=(0.5, 3.0), q_fp8_dtype=E4M3FN, q_scale=0.2),
    Case("fp8_fnuz_query", "the other fp8 format", pool_dtype=E4M3FNUZ, pool_scales=(0.5, 3.0), q_fp8_dtype=E4M3FNUZ),
    Case("fp8_query_rows_apart", "the fp8 query's row stride taken for its width", pool_dtype=E4M3FN,
         q_fp8_dtype=E4M3FN, q_fp8_gap=128, slots=None),
    Case("fp8_query_of_bf16_pool", "K stored in the query's format", q_fp8_dtype=E4M3FN, q_scale=0.7),
    Case("fp8_interleaved_256", "the fp8 path's constants of D = 128", is_neox=False, head_dim=256, heads=(3, 1),
         pool_dtype=E4M3FN, q_fp8_dtype=E4M3FN),
    Case("fp8_64_bf16_cos_sin", "the fp8 path's constants of D = 128", head_dim=64, pool_dtype=E4M3FN,
         cos_sin_dtype=BF16, q_fp8_dtype=E4M3FN),
    Case("float32", "a rounding to bf16 where qkv is float32", dtype=F32),
    Case("float32_interleaved", "a rounding to bf16 where qkv is float32", dtype=F32, is_neox=False, rotary_dim=128),
    Case("float32_fp8", "a rounding to bf16 before the fp8 step", dtype=F32, pool_dtype=E4M3FN, q_fp8_dtype=E4M3FN),
    Case("slot_beyond_pool", "a wild write on a device", slots=(1, NUM_SLOTS, 2, FAR, 3, 4, 5), breaks_contract=True),
    Case("position_beyond_table", "a wild read on a device", positions=(0, FAR, NUM_POSITIONS, -1, -FAR, 5, 6),
         breaks_contract=True),
    Case("position_of_a_skipped_token", "a position that a negative slot excuses, though Q is used",
         slots=(0, -1, -1, -1, -1, 1, 2), positions=(0, -1, NUM_POSITIONS, FAR, -FAR, 1, 2), breaks_contract=True),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """A case in tensors. ``storages``: the whole allocations of everything that a call may write."""

    spec: QKNormRopeSpec
    tables: QKNormRopeTables
    storages: dict[str, torch.Tensor]  # "qkv" [T, width + gap], "k", "v" [slots, Hkv * D + padding], "q_fp8"
    qkv: torch.Tensor  # [T, (Hq + 2 * Hkv) * D]
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor | None  # [T] int64
    q_fp8_out: torch.Tensor | None  # [T, Hq, D]

    def rows(self):
        """The arguments of a call."""
        return self.qkv, self.positions, self.slots, self.q_fp8_out


def problem(case: Case, device: str = "cpu") -> Problem:
    """The case in tensors: the same bytes every time."""
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    q_heads, kv_heads = case.heads
    k_scale, v_scale = case.pool_scales or (None, None)
    spec = QKNormRopeSpec(
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=case.head_dim,
        rotary_dim=case.rotary_dim,
        is_neox=case.is_neox,
        eps=case.eps,
        qkv_dtype=case.dtype,
        pool_dtype=case.pool_dtype or case.dtype,
        cos_sin_dtype=case.cos_sin_dtype,
        k_scale=k_scale,
        v_scale=v_scale,
        q_fp8_dtype=case.q_fp8_dtype,
        q_scale=case.q_scale,
    )
    storages = {"qkv": _qkv(case, spec.num_heads * case.head_dim, generator).to(device)}
    pools = {}
    for name, padding in zip(("k", "v"), case.pool_padding, strict=True):
        if case.pools:
            storages[name] = _random_bits(NUM_SLOTS, kv_heads * case.head_dim + padding, spec.pool_dtype, generator)
            storages[name] = storages[name].to(device)
            pools[f"{name}_pool"] = _heads(storages[name], kv_heads, case.head_dim)
    if case.q_fp8_dtype:
        bits = _random_bits(case.tokens, q_heads * case.head_dim + case.q_fp8_gap, case.q_fp8_dtype, generator)
        storages["q_fp8"] = bits.to(device)

    # Far apart, so that one's multipliers in the other's place show.
    q_multipliers = (1 + 0.3 * torch.randn(case.head_dim, generator=generator)).to(device)
    k_multipliers = (-2 + 0.3 * torch.randn(case.head_dim, generator=generator)).to(device)
    angles = torch.rand(NUM_POSITIONS, case.rotary_dim // 2, generator=generator) * 6.3
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(case.cos_sin_dtype).to(device)
    positions = case.positions or tuple(17 * token % NUM_POSITIONS for token in range(case.tokens))
    slots = tuple(range(3, 3 + case.tokens)) if case.slots == () else case.slots
    return Problem(
        spec,
        QKNormRopeTables(q_multipliers, k_multipliers, cos_sin, **pools),
        storages,
        storages["qkv"][:, : spec.num_heads * case.head_dim],
        torch.tensor(positions, dtype=torch.int64, device=device),
        None if slots is None else torch.tensor(slots, dtype=torch.int64, device=device),
        _heads(storages["q_fp8"], q_heads, case.head_dim) if case.q_fp8_dtype else None,
    )


def _heads(storage: torch.Tensor, heads: int, head_dim: int) -> torch.Tensor:
    return storage[:, : heads * head_dim].unflatten(1, (heads, head_dim))


def _random_bits(rows: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Rows of random bits (NaNs included), so that any byte that changes shows."""
    shape = (rows, width * dtype.itemsize)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8).view(dtype)


def _qkv(case: Case, width: int, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(case.tokens, width, generator=generator)
    # The smallest normal bf16 is 1.18e-38; with eps = 1 the norm leaves the sizes of Q and K as they are.
    sizes = {"tiny": 1e-2, "subnormal": 4e-39, "large": 500.0, "rounds_to_zero": 1e-4, "huge": 1e30, "zeros": 0.0}
    values *= sizes.get(case.values, 1.0)
    if case.values == "not_finite":
        heads = values.unflatten(1, (-1, case.head_dim))
        heads[1, 0, 5] = float("nan")
        heads[2, case.heads[0], 100] = float("inf")
        heads[4, case.heads[0] + 1, :] = float("-inf")
        heads[5, -1, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    storage = _random_bits(case.tokens, width + case.qkv_gap, case.dtype, generator)
    if case.values != "any_bits":
        storage[:, :width] = values.to(case.dtype)
    return storage
