"""The context KV writer's work at one shape: tensors, bytes that must move, and who does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import NoBackend
from sglang_dspark.platforms import Platform

from . import upstream
from .presets import Preset

DEVICE_COPY = "device_copy"
# Calls go through these in turn. Their slots are scattered over the pools and never shared.
INPUT_SETS = 4
SLOTS, POSITIONS = 65536, 32768
INDEX_BYTES = 8  # of a position, and of a slot
COPY_ACCESS_BYTES = 16
DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
}

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Shape:
    """One case: a preset, so many tokens, one type of pool."""

    preset: Preset
    tokens: int
    pool_dtype: torch.dtype

    def spec(self) -> ContextKVSpec:
        """What the writer is bound to. An fp8 pool has a scale for K and for V of every layer, none of them 1."""
        preset, fp8 = self.preset, self.pool_dtype.itemsize == 1
        return ContextKVSpec(
            num_layers=preset.layers,
            num_kv_heads=preset.kv_heads,
            head_dim=preset.head_dim,
            rotary_dim=preset.rotary_dim,
            is_neox=True,
            eps=1e-6,
            kv_dtype=torch.bfloat16,
            pool_dtype=self.pool_dtype,
            k_scales=(0.03,) * preset.layers if fp8 else None,
            v_scales=(0.02,) * preset.layers if fp8 else None,
        )

    def case(self) -> dict[str, int | str]:
        """The row's description of the shape."""
        preset = self.preset
        return {
            "tokens": self.tokens,
            "kv_heads": preset.kv_heads,
            "layers": preset.layers,
            "head_dim": preset.head_dim,
            "rotary_dim": preset.rotary_dim,
            "kv_dtype": DTYPE_NAMES[torch.bfloat16],
            "pool_dtype": DTYPE_NAMES[self.pool_dtype],
        }

    def moved_bytes(self) -> int:
        """What any writer must read and write: kv, cos and sin, positions, slots and multipliers; K and V rows."""
        preset = self.preset
        values = preset.layers * 2 * preset.kv_heads * preset.head_dim
        read = values * torch.bfloat16.itemsize + preset.rotary_dim * torch.float32.itemsize + 2 * INDEX_BYTES
        multipliers = preset.layers * preset.head_dim * torch.float32.itemsize
        return self.tokens * (read + values * self.pool_dtype.itemsize) + multipliers


@dataclass(frozen=True, eq=False)
class Inputs:
    """The rows of one call, and a source and a destination that a copy of as many bytes as it moves takes."""

    kv: torch.Tensor  # [T, L, 2, H, D] bf16
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64
    source: torch.Tensor  # [moved / 2] uint8
    destination: torch.Tensor  # [moved / 2] uint8


@dataclass(frozen=True, eq=False)
class Work:
    """A shape in tensors."""

    spec: ContextKVSpec
    tables: ContextKVTables
    sets: tuple[Inputs, ...]


def build(shape: Shape, device: str, num_slots: int = SLOTS, num_positions: int = POSITIONS) -> Work:
    """The tensors of a shape: the same values every time."""
    generator = torch.Generator(device=device).manual_seed(shape.tokens * 16 + shape.preset.kv_heads)
    spec = shape.spec()
    pool = (num_slots, spec.num_kv_heads, spec.head_dim)
    k_pools, v_pools = (tuple(_zeros(pool, spec.pool_dtype, device) for _ in range(spec.num_layers)) for _ in range(2))
    multipliers = 1 + 0.3 * torch.randn(spec.num_layers, spec.head_dim, generator=generator, device=device)
    angles = torch.rand(num_positions, spec.rotary_dim // 2, generator=generator, device=device) * 6.3
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    scattered = torch.randperm(num_slots, generator=generator, device=device)
    sets = []
    for index in range(INPUT_SETS):
        kv = torch.randn(shape.tokens, spec.num_layers, 2, *pool[1:], generator=generator, device=device)
        positions = torch.randint(num_positions, (shape.tokens,), generator=generator, device=device)
        slots = scattered[index * shape.tokens : (index + 1) * shape.tokens].clone()
        source = torch.ones(copy_bytes(shape), dtype=torch.uint8, device=device)
        sets.append(Inputs(kv.to(torch.bfloat16), positions, slots, source, torch.zeros_like(source)))
    return Work(spec, ContextKVTables(k_pools, v_pools, multipliers, cos_sin), tuple(sets))


def copy_bytes(shape: Shape) -> int:
    """A copy of this many bytes reads and writes what the writer moves, to the nearest 16-byte access."""
    return shape.moved_bytes() // 2 // COPY_ACCESS_BYTES * COPY_ACCESS_BYTES


def writers(
    platform: Platform, work: Work, load_upstream: Callable[[str], Callable[..., None]] = upstream.load
) -> tuple[dict[str, Call], dict[str, str]]:
    """Every writer that covers the work, the platform's backends first, and why the others do not."""
    calls: dict[str, Call] = {}
    refused: dict[str, str] = {}
    for name in platform.backends(context_kv.OP.name):
        try:
            calls[name] = context_kv.choose(platform, work.spec, work.tables, name).run
        except NoBackend as reason:
            refused[name] = _short(str(reason), name)
    try:
        for name in upstream.VARIANTS:
            calls[name] = upstream.bind(load_upstream(name), work.spec, work.tables)
    except upstream.UpstreamMissing as reason:
        refused[upstream.SGLANG] = str(reason)
    return calls, refused


def disagreement(work: Work, calls: dict[str, Call]) -> dict[str, str]:
    """Which writers leave other bytes in the pools than the first one, on the very inputs that are timed, and how."""
    found: dict[str, str] = {}
    expected: tuple[torch.Tensor, torch.Tensor] | None = None
    for name, call in calls.items():
        rows = work.sets[0]
        for pool in (*work.tables.k_pools, *work.tables.v_pools):
            _bits(pool).zero_()
        try:
            call(rows.kv, rows.positions, rows.slots)
        except Exception as error:  # another SGLang may have other parameters, and its own ways to fail
            if name not in upstream.VARIANTS:
                raise
            found[name] = f"it raises {type(error).__name__}: {error}"
            continue
        k, v = (torch.stack([_bits(pool)[rows.slots] for pool in pools])
                for pools in (work.tables.k_pools, work.tables.v_pools))  # fmt: skip
        if expected is None:
            expected = k, v
            continue
        # One K in 10,000 may round the other way (tests/parity/bounds.py); SGLang's products are fused, so more do.
        limit = max(4, int(k.numel() * (1e-2 if name in upstream.VARIANTS else 1e-3)))
        differing = int((k != expected[0]).sum())
        if not torch.equal(v, expected[1]):
            found[name] = "V differs"
        elif differing > limit:
            found[name] = f"{differing} of {k.numel()} K elements differ, at most {limit} may"
    return found


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    words = torch.zeros(shape, dtype=torch.int16 if dtype.itemsize == 2 else torch.uint8, device=device)
    return words.view(dtype)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.itemsize == 2 else torch.uint8)


def _short(message: str, name: str) -> str:
    # The refusals, without the spec that they are about.
    _, _, refusals = message.partition(f"refused: {name}: ")
    return refusals.partition(". What to do")[0] or message
