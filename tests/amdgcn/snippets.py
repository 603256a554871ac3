"""Runs a few instructions on a wave with given registers, for the interpreter's own tests.

Where LLVM is installed the lines go through its assembler and disassembler first, so that what is tested is what it
writes; elsewhere they are read as they stand.
"""

from __future__ import annotations

import functools
import random

import numpy as np

from . import toolchain
from .chip import GFX942, Chip
from .decode import Instruction, parse_listing, parse_text
from .launch import bind
from .memory import Memory
from .registers import ALL_LANES, LANES, SPECIAL, U32, U64, Wave

# Values at which float32 arithmetic changes its ways; both signs of each.
EDGES = [
    0.0,
    1.0,
    1.5,
    3.0,
    2.0**-126,
    2.0**-149,
    1.1754942e-38,
    3.4028235e38,
    2.0**-30,
    2.0**60,
    16777217.0,
    np.inf,
    np.nan,
]


@functools.cache
def assembled(lines: tuple[str, ...], arch: str) -> list[Instruction]:
    """The lines as instructions."""
    if toolchain.MISSING:
        return [parse_text(line) for line in lines]
    found = parse_listing(toolchain.listing_of("\n".join(lines) + "\n", arch))
    assert len(found) == len(lines)
    return found


def execute(
    *lines: str,
    chip: Chip = GFX942,
    lanes: np.ndarray = ALL_LANES,
    memory: Memory | None = None,
    denormals_32: int = 3,
    lds_bytes: int = 0,
    **registers: np.ndarray | int | float,
) -> Wave:
    """The wave after these lines. Registers are v1=..., s4=..., vcc=...; a pair by its first: v2 with 64-bit values."""
    wave = Wave(chip, memory or Memory(), np.full(lds_bytes, 0xA5, np.uint8))
    wave.exec = lanes
    wave.denormals_32 = denormals_32
    for name, value in registers.items():
        set_register(wave, name, value)
    with np.errstate(all="ignore"):
        for instruction in assembled(lines, chip.name):
            bind(instruction, chip)(wave)
    return wave


def set_register(wave: Wave, name: str, value) -> None:
    if name in SPECIAL:
        wave.set_scalar(*SPECIAL[name], value)
    elif name[0] == "s":
        wave.set_scalar(int(name[1:]), 1 if value < 2**32 else 2, value)
    else:
        values = np.broadcast_to(np.asarray(value), LANES)
        number = int(name[1:]) + 256 * (name[0] == "a")
        if values.dtype.itemsize == 8 and values.dtype.kind in "ui" and np.asarray(value).shape:
            wave.vectors[number], wave.vectors[number + 1] = values.astype(U32), (values >> 32).astype(U32)
        elif values.dtype.kind == "f":
            wave.vectors[number] = values.astype(np.float32).view(U32)
        else:
            wave.vectors[number] = values.astype(np.int64).astype(U32)


def floats(wave: Wave, number: int) -> np.ndarray:
    """A vector register as float32."""
    return wave.vectors[number].view(np.float32)


def pair(wave: Wave, number: int) -> np.ndarray:
    """Two vector registers as uint64."""
    return wave.vectors[number].astype(U64) | wave.vectors[number + 1].astype(U64) << U64(32)


def random_words(seed: int) -> np.ndarray:
    """[64] uint32, always the same."""
    generator = random.Random(seed)
    return np.array([generator.getrandbits(32) for _ in range(LANES)], U32)


def random_floats(seed: int) -> np.ndarray:
    """[64] float32 of all sizes, the edges among them at places of their own for each seed."""
    generator = random.Random(seed)
    values = np.array([generator.getrandbits(32) for _ in range(LANES)], U32).view(np.float32).copy()
    values[::2] = [generator.uniform(-4, 4) for _ in range(LANES // 2)]
    signed = [sign * value for value in EDGES for sign in (1, -1)]
    generator.shuffle(signed)
    values[: len(signed)] = signed
    return values


def same_floats(found: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit, but any NaN equals any other."""
    expected = np.asarray(expected, np.float32)
    return bool(np.all((found.view(U32) == expected.view(U32)) | (np.isnan(found) & np.isnan(expected))))
