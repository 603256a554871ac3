"""The named cases of the context KV writer: what each one sets up, and the bug it catches.

A case is a small value; `problem` turns it into tensors, always the same ones, so that every executor (one in another
process included) works on the same bytes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables

BF16, F32 = torch.bfloat16, torch.float32
E4M3FN, E4M3FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


@dataclass(frozen=True)
class Case:
    """One case. ``catches`` is the bug that makes it fail."""

    name: str
    catches: str
    tokens: int = 6
    layers: int = 2
    heads: int = 2
    head_dim: int = 128
    rotary_dim: int = 64
    is_neox: bool = True
    dtype: torch.dtype = BF16
    cos_sin_dtype: torch.dtype = F32
    eps: float = 1e-6
    layer_norm_scales: tuple[float, ...] = ()
    # "normal", "tiny", "subnormal", "large", "rounds_to_zero", "not_finite", "huge", "zeros", "any_bits"
    values: str = "normal"
    pool_padding: tuple[int, int] = (
        0,
        0,
    )  # elements after each row of K and V in layer 0, twice as many in layer 1, ...
    kv_gap: int = 0  # elements between the tokens of kv
    slots: tuple[int, ...] = ()  # default: one after the other from 3
    positions: tuple[int, ...] = ()  # default: spread over the table
    commit_lens: tuple[int, ...] = ()
    commit_dtype: torch.dtype = torch.int32
    pool_dtype: torch.dtype | None = None  # default: dtype
    scales: tuple[float, ...] = ()  # of an fp8 pool: K of layer 0, V of layer 0, K of layer 1, ...
    slots_per_layer: bool = False  # layer l's slots are the token's, l further
    # Only a device answers these: rows that break the contract. The CPU raises IndexError.
    breaks_contract: bool = False


NUM_SLOTS = 320
NUM_POSITIONS = 97
FAR = 2**40

CASES = (
    Case("plain", "a rounding point missing or added; K and V swapped; multiplier or position of another row"),
    Case("no_tokens", "a launch of an empty grid, or a division by T", tokens=0),
    Case("no_tokens_but_commit_lens", "a division by the width of an empty block", tokens=0, commit_lens=(0, 0)),
    Case("one_token", "a tile that writes past the last token", tokens=1),
    Case("seven_tokens", "a tail shorter than the tile", tokens=7, heads=1),
    Case("many_tokens", "a grid dimension or an offset computed too small", tokens=300, layers=1, heads=1, head_dim=64),
    Case("five_layers", "a layer's pointer, stride or multiplier read from another layer", layers=5, heads=1),
    Case("holes", "a negative slot that is written (from the pool's end)", slots=(5, -1, 9, -1, -7, 2)),
    Case("all_holes", "slot 0 damaged when no row is written", slots=(-1,) * 6),
    Case("slot_zero", "a skipped row that puts back the old value of slot 0 over its owner's",
         slots=(-1, -1, 4, 0, -1, 7)),
    Case("permuted_slots", "rows written in order instead of by slot", slots=(11, 2, 300, 0, 7, 6)),
    Case("last_slot_and_position", "a bound that is off by one", slots=(NUM_SLOTS - 1, 0, 1, 2, 3, 4),
         positions=(NUM_POSITIONS - 1, 0, 1, 2, 3, NUM_POSITIONS - 1)),
    Case("uneven_commits", "a commit length read per token, or <= instead of <", tokens=20, heads=1,
         commit_lens=(0, 2, 5, 3)),
    Case("int64_commits", "commit lengths read in the wrong width", tokens=8, commit_lens=(1, 0, 2, 1),
         commit_dtype=torch.int64),
    Case("commits_and_holes", "one of the two ways to skip overriding the other", commit_lens=(2, 3),
         slots=(4, -1, 8, -1, 1, 0)),
    Case("nothing_committed", "a block whose rows are all rejected", commit_lens=(0, 0, 0)),
    Case("garbage_positions", "a skipped row's position that is used", slots=(-1, 4, -1, 5, 6, -1),
         positions=(FAR, 3, -FAR, 0, 9, -1)),
    Case("garbage_positions_of_rejected", "a rejected row's position that is used", commit_lens=(1, 2),
         positions=(3, FAR, -FAR, 5, 0, NUM_POSITIONS)),
    Case("padded_pool_rows", "a row stride taken for H * D; padding that is written", pool_padding=(32, 32)),
    Case("odd_pool_stride", "wide accesses to rows that are not aligned to them", pool_padding=(3, 3)),
    Case("strides_of_their_own", "one pool's row stride used for another", layers=3, pool_padding=(16, 64)),
    Case("kv_rows_apart", "kv's token stride taken for L * 2 * H * D", kv_gap=64),
    Case("layer_weights", "one layer's norm weights used for all", layers=3, heads=1,
         layer_norm_scales=(0.25, 1.0, -4.0)),
    Case("eps_matters", "eps left out, added after the root, or to the sum", eps=1e-2, values="tiny"),
    Case("heads_1", "the head dimension taken for granted", heads=1),
    Case("heads_3", "a head count that is no power of two", heads=3),
    Case("heads_4", "a head taken for a token where the tile holds several of both", heads=4),
    Case("heads_8", "more heads than rows in a tile", heads=8, tokens=3),
    Case("dim_64_rotary_16", "constants of D = 128", head_dim=64, rotary_dim=16),
    Case("dim_64_rotary_all", "a tail of no elements", head_dim=64, rotary_dim=64),
    Case("dim_128_rotary_48", "a rotary half that is no power of two", rotary_dim=48),
    Case("dim_128_rotary_all", "a tail of no elements", rotary_dim=128),
    Case("dim_256_rotary_64", "constants of D = 128", head_dim=256, heads=1),
    Case("dim_96_rotary_32", "a head dimension that is no power of two", head_dim=96, rotary_dim=32, tokens=3),
    Case("interleaved", "partners i, i + R/2 instead of 2i, 2i + 1", is_neox=False),
    Case("interleaved_48", "interleaved partners past R", is_neox=False, rotary_dim=48, tokens=3),
    Case("bf16_cos_sin", "cos and sin read in the wrong width, or rotated in bf16", cos_sin_dtype=BF16),
    Case("not_finite", "a NaN or an infinity that reaches another row", values="not_finite"),
    Case("subnormal", "values below the normal range flushed in V, or lost in K", values="subnormal", eps=1.0),
    Case("float32", "a rounding to bf16 where kv is float32", dtype=F32),
    Case("float32_interleaved", "a rounding to bf16 where kv is float32", dtype=F32, is_neox=False, rotary_dim=128),
    Case("fp8", "bf16 bytes in an fp8 pool; a row stride in elements of bf16", pool_dtype=E4M3FN),
    Case("fp8_fnuz", "the exponent bias of the other format", pool_dtype=E4M3FNUZ),
    Case("fp8_scales", "one scale for both halves or all layers; multiplied instead of divided", layers=3,
         pool_dtype=E4M3FN, scales=(0.5, 3.0, 0.013, 1.7, 12.0, 0.3)),
    Case("fp8_fnuz_scales", "scales in the other format", heads=1, pool_dtype=E4M3FNUZ, scales=(0.7, 0.01, 5.0, 2.0)),
    Case("fp8_saturation", "NaN or infinity in place of the largest value", values="large", pool_dtype=E4M3FN,
         layer_norm_scales=(300.0, -600.0)),
    Case("fp8_fnuz_saturation", "the other format's largest value", values="large", pool_dtype=E4M3FNUZ,
         layer_norm_scales=(300.0, -600.0)),
    Case("fp8_not_finite", "an infinity that becomes NaN; a NaN that becomes the largest value",
         values="not_finite", pool_dtype=E4M3FN, scales=(0.5, 3.0, 0.25, 1.0)),
    Case("fp8_fnuz_not_finite", "a NaN that becomes a number", values="not_finite", pool_dtype=E4M3FNUZ),
    Case("fp8_negative_zero", "a negative zero that loses its sign", values="rounds_to_zero", eps=1.0,
         pool_dtype=E4M3FN),
    Case("fp8_fnuz_negative_zero", "a small negative value that becomes fnuz's NaN", values="rounds_to_zero", eps=1.0,
         pool_dtype=E4M3FNUZ),
    Case("fp8_everything", "an fp8 path of its own for one layout", is_neox=False, heads=3, cos_sin_dtype=BF16,
         slots=(5, -1, 9, 4, -7, 2), commit_lens=(2, 1, 2), pool_padding=(16, 48), pool_dtype=E4M3FN),
    Case("fp8_dim_256", "a lane that stores more than its part", head_dim=256, rotary_dim=256, pool_dtype=E4M3FNUZ),
    Case("slots_of_each_layer", "one layer's slots used for another", layers=3, slots_per_layer=True),
    Case("holes_of_each_layer", "a hole of one layer that skips all", layers=2, slots_per_layer=True,
         slots=(-1, 4, -3, 9, 12, 300), commit_lens=(2, 3)),
    Case("slot_beyond_pool", "a wild write on a device", slots=(1, NUM_SLOTS, 2, FAR, 3, 4), breaks_contract=True),
    Case("position_beyond_table", "a wild read on a device", positions=(0, FAR, NUM_POSITIONS, -1, -FAR, 5),
         breaks_contract=True),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """A case in tensors. ``storages`` are the whole allocations under the pools: K and V of layer 0, of layer 1, ..."""

    spec: ContextKVSpec
    tables: ContextKVTables
    storages: tuple[torch.Tensor, ...]
    kv: torch.Tensor  # [T, L, 2, H, D]
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64
    commit_lens: torch.Tensor | None  # [B]

    def rows(self):
        """The arguments of a writer's call."""
        return self.kv, self.positions, self.slots, self.commit_lens


def problem(case: Case, device: str = "cpu") -> Problem:
    """The case in tensors: the same bytes every time."""
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    spec = ContextKVSpec(
        num_layers=case.layers,
        num_kv_heads=case.heads,
        head_dim=case.head_dim,
        rotary_dim=case.rotary_dim,
        is_neox=case.is_neox,
        eps=case.eps,
        kv_dtype=case.dtype,
        pool_dtype=case.pool_dtype or case.dtype,
        cos_sin_dtype=case.cos_sin_dtype,
        k_scales=case.scales[0::2] or None,
        v_scales=case.scales[1::2] or None,
        slots_per_layer=case.slots_per_layer,
    )
    storages, k_pools, v_pools = _pools(case, generator, device)
    scales = torch.tensor(case.layer_norm_scales or (1.0,) * case.layers)
    multipliers = (1 + 0.3 * torch.randn(case.layers, case.head_dim, generator=generator)) * scales[:, None]
    angles = torch.rand(NUM_POSITIONS, case.rotary_dim // 2, generator=generator) * 6.3
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(case.cos_sin_dtype)
    tables = ContextKVTables(k_pools, v_pools, multipliers.to(device), cos_sin.to(device))

    positions = case.positions or tuple(17 * token % NUM_POSITIONS for token in range(case.tokens))
    slots = torch.tensor(case.slots or tuple(range(3, 3 + case.tokens)), dtype=torch.int64, device=device)
    if case.slots_per_layer:
        slots = slots + torch.arange(case.layers, device=device)[:, None]
    commit_lens = torch.tensor(case.commit_lens, dtype=case.commit_dtype, device=device) if case.commit_lens else None
    return Problem(
        spec,
        tables,
        storages,
        _kv(case, generator).to(device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        slots,
        commit_lens,
    )


def _pools(case: Case, generator: torch.Generator, device: str):
    """Allocations full of random bits (NaNs included), so that any byte that changes shows."""
    row = case.heads * case.head_dim
    dtype = case.pool_dtype or case.dtype
    words = torch.int16 if dtype.itemsize > 1 else torch.int8
    limit = torch.iinfo(words).max + 1
    storages, pools = [], []
    for layer in range(case.layers):
        for padding in case.pool_padding:
            shape = (NUM_SLOTS, row + padding * (layer + 1), dtype.itemsize // words.itemsize)
            bits = torch.randint(-limit, limit, shape, generator=generator, dtype=words)
            storages.append(bits.to(device).view(dtype)[..., 0])
            pools.append(storages[-1][:, :row].unflatten(1, (case.heads, case.head_dim)))
    return tuple(storages), tuple(pools[0::2]), tuple(pools[1::2])


def _kv(case: Case, generator: torch.Generator) -> torch.Tensor:
    shape = (case.layers, 2, case.heads, case.head_dim)
    length = case.layers * 2 * case.heads * case.head_dim
    values = torch.randn(case.tokens, length + case.kv_gap, generator=generator)
    if case.values == "tiny":
        values *= 1e-2
    if case.values == "subnormal":
        # The smallest normal bf16 is 1.18e-38; with eps = 1 the norm leaves the size of K as it is.
        values *= 4e-39
    if case.values == "large":
        values *= 1e3
    if case.values == "rounds_to_zero":
        values *= 1e-4
    if case.values == "huge":
        values *= 1e30  # whose squares are infinite
    if case.values == "zeros":
        values *= 0.0
    kv = values.to(case.dtype)
    if case.values == "any_bits":
        kv = torch.randint(256, (case.tokens, kv.shape[1] * kv.itemsize), generator=generator, dtype=torch.uint8)
        kv = kv.view(case.dtype)
    kv = kv[:, :length].unflatten(1, shape)
    if case.values == "not_finite":
        kv[1, 0, :, 0, 5] = float("nan")
        kv[2, 1, :, 1, 100] = float("inf")
        kv[4, 0, 1, 0, :] = float("-inf")
    return kv
