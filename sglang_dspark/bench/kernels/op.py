"""What the benchmark knows of an op: shapes, inputs, bytes that must move, what a call writes, SGLang's own path.

An op is data, as its backends are (`ops/dispatch.py`): everything else here works on any op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sglang_dspark.bench.presets import Preset
from sglang_dspark.ops import dispatch
from sglang_dspark.platforms import Platform

# Calls go through these in turn. Their slots are scattered over the pools and never shared.
INPUT_SETS = 4
# Slot 0 is left out: SGLang's store skips it, as the padding slot of its graphs.
SLOTS, POSITIONS = 65536 + 16, 32768
INDEX_BYTES = 8  # of a position, and of a slot
COPY_ACCESS_BYTES = 16
DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
}

Call = Callable[..., object]


class UpstreamMissing(RuntimeError):
    """SGLang's own path is not on this machine, or does not cover the case. The message says which."""


class ParityFailed(RuntimeError):
    """A backend does not follow the law here, or could not be checked. Nothing may be timed."""


@dataclass(frozen=True)
class Shape:
    """One case: a preset, so many tokens, one type of pool."""

    preset: Preset
    tokens: int
    pool_dtype: torch.dtype

    @property
    def pool_name(self) -> str:
        """The pool's type as rows name it."""
        return DTYPE_NAMES[self.pool_dtype]

    @property
    def is_fp8(self) -> bool:
        """Whether the pool has 8 bits a value."""
        return self.pool_dtype.itemsize == 1

    def __str__(self) -> str:
        return f"{self.preset.name} T={self.tokens} {self.pool_name}"


@dataclass(frozen=True, eq=False)
class Inputs:
    """The rows of one call, and a source and a destination that a copy of as many bytes as it moves takes.

    ``pristine`` are those rows that a call overwrites, each with a copy of what it was.
    """

    rows: tuple[torch.Tensor, ...]
    slots: torch.Tensor  # [T] int64, one of the rows
    source: torch.Tensor  # [moved / 2] uint8
    destination: torch.Tensor  # [moved / 2] uint8
    pristine: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    def restore(self) -> None:
        """Undo what calls have written into their own rows."""
        for tensor, first in self.pristine:
            tensor.copy_(first)


@dataclass(frozen=True, eq=False)
class Work:
    """A shape in tensors."""

    shape: Shape
    spec: Any
    tables: Any
    sets: tuple[Inputs, ...]


@dataclass(frozen=True, eq=False)
class Written:
    """Something that a call writes. ``rounds`` says that the order of a sum shows in it, now and then.

    ``by_slot`` is a pool, whose rows outside the slots stay; the other kind is written whole.
    """

    name: str
    tensor: torch.Tensor  # [rows, H, D]
    rounds: bool
    by_slot: bool


@dataclass(frozen=True)
class Baseline:
    """A way of SGLang's to do the same. ``bind`` raises `UpstreamMissing`.

    ``share`` is the part of the pools' elements that may differ from ours: its roundings are others.
    """

    name: str
    bind: Callable[[Platform, Any, Any], Call]
    share: Callable[[Platform, Shape], float]


@dataclass(frozen=True)
class OpBench:
    """An op as the benchmark sees it. ``source`` is its kernel's file in `hip/`.

    ``extra_rows`` are arguments behind those of ``inputs`` that a call may have, each way once, () for none.
    """

    op: dispatch.Op
    source: str
    baselines: tuple[Baseline, ...]
    uses: Callable[[Preset], object]  # what of a preset this op sees: equal means the same shapes
    spec: Callable[[Shape], Any]
    case: Callable[[Shape], dict[str, int | str]]
    moved_bytes: Callable[[Shape], int]
    tables: Callable[[Shape, torch.Generator, str, int, int], Any]
    inputs: Callable[[Shape, torch.Generator, str, torch.Tensor, int], Inputs]
    extra_rows: Callable[[Shape, str], Iterator[tuple[torch.Tensor, ...]]]
    written: Callable[[Work, Inputs], list[Written]]
    reference: Callable[..., None]
    kernel_name: Callable[[Any], str]
    rows_of: Callable[[Shape], int]  # rows of D values that a call works on

    @property
    def name(self) -> str:
        """The op's name, which is the benchmark's."""
        return self.op.name

    def build(
        self,
        shape: Shape,
        device: str,
        num_slots: int = SLOTS,
        num_positions: int = POSITIONS,
        sets: int = INPUT_SETS,
    ) -> Work:
        """The tensors of a shape: the same values every time."""
        generator = torch.Generator(device=device).manual_seed(shape.tokens * 16 + shape.preset.kv_heads)
        tables = self.tables(shape, generator, device, num_slots, num_positions)
        scattered = 1 + torch.randperm(num_slots - 1, generator=generator, device=device)
        slots = scattered[: sets * shape.tokens].view(sets, shape.tokens)
        inputs = tuple(self.inputs(shape, generator, device, slots[i].clone(), num_positions) for i in range(sets))
        return Work(shape, self.spec(shape), tables, inputs)

    def bind(self, platform: Platform, work: Work, backend: str) -> Call:
        """A backend of ours bound to the work; raises `NoBackend` with its refusals."""
        return dispatch.choose(self.op, platform, work.spec, work.tables, backend).run


def copy_bytes(moved_bytes: int) -> int:
    """A copy of this many bytes reads and writes as much as that, to the nearest 16-byte access."""
    return moved_bytes // 2 // COPY_ACCESS_BYTES * COPY_ACCESS_BYTES


def copy_buffers(moved_bytes: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and destination of a copy that moves as much."""
    source = torch.ones(copy_bytes(moved_bytes), dtype=torch.uint8, device=device)
    return source, torch.zeros_like(source)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A pool of zero bytes: not every device fills 8-bit floats."""
    words = torch.zeros(shape, dtype=torch.int16 if dtype.itemsize == 2 else torch.uint8, device=device)
    return words.view(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers of the same width."""
    return tensor.view(torch.int16 if tensor.itemsize == 2 else torch.uint8)
