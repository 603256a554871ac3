"""The state of one wave: scalar and vector registers, EXEC, VCC, SCC, MODE; and operands read from text.

Scalar registers are Python integers in one list, numbered as the encodings number them, so that a pair is two
neighbours. Vector registers are one array [512, 64] uint32: v0..v255, then a0..a255. Registers start with garbage.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np

from .chip import Chip
from .counters import Counters, RoundTrips
from .memory import Memory

LANES = 64
U32, U64 = np.uint32, np.uint64
LOW_32, LOW_64 = 2**32 - 1, 2**64 - 1
FLAT_SCRATCH, XNACK_MASK, VCC, M0, EXEC = 102, 104, 106, 124, 126
SPECIAL = {"vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "m0": (M0, 1), "exec": (EXEC, 2),
           "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1), "flat_scratch": (FLAT_SCRATCH, 2),
           "flat_scratch_lo": (FLAT_SCRATCH, 1), "flat_scratch_hi": (FLAT_SCRATCH + 1, 1),
           "xnack_mask": (XNACK_MASK, 2)}  # fmt: skip
REGISTER = re.compile(r"([sva])(?:(\d+)|\[(\d+):(\d+)\])$")
# 1/(2 pi) is the one inline constant that is written with many digits.
FLOAT_CONSTANT = re.compile(r"-?\d+\.\d+$")


class UnknownInstruction(Exception):
    """An instruction, an operand or a modifier that is not emulated."""


def scalar_pair(mask: np.ndarray) -> int:
    """Lanes [64] bool as the 64 bits of a mask."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def lane_mask(value: int) -> np.ndarray:
    """The 64 bits of a mask as lanes [64] bool."""
    return np.unpackbits(np.frombuffer(value.to_bytes(8, "little"), np.uint8), bitorder="little").astype(bool)


ALL_LANES = lane_mask(LOW_64)


class Wave:
    """One wave on its way through a kernel."""

    def __init__(self, chip: Chip, memory: Memory, lds: np.ndarray) -> None:
        self.chip, self.memory, self.lds = chip, memory, lds
        self._scalars = [0xDEAD0000 + number for number in range(128)]
        self.vectors = np.full((512, LANES), 0x7FA5A5A5, U32)  # a signalling NaN
        self.scc = 0
        self.denormals_32 = 3
        self.pc = 0
        self.state = "running"  # "running", "barrier", "ended"
        self.counters = Counters(waves=1)
        self.round_trips = RoundTrips()
        self.exec = ALL_LANES

    @property
    def exec(self) -> np.ndarray:
        """Active lanes, [64] bool."""
        if self._exec is None:
            self._exec = lane_mask(self.scalar(EXEC, 2))
        return self._exec

    @exec.setter
    def exec(self, mask: np.ndarray) -> None:
        self.set_scalar(EXEC, 2, scalar_pair(mask))

    def scalar(self, number: int, count: int = 1) -> int:
        """One register, or several as one integer."""
        if count == 1:
            return self._scalars[number]
        return sum(self._scalars[number + i] << 32 * i for i in range(count))

    def set_scalar(self, number: int, count: int, value: int) -> None:
        """Write one register, or several."""
        for i in range(count):
            self._scalars[number + i] = value >> 32 * i & LOW_32
        if number + count > EXEC:
            self._exec: np.ndarray | None = None

    def write_vector(self, number: int, values: np.ndarray, lanes: np.ndarray) -> None:
        """Write these lanes of a vector register."""
        np.copyto(self.vectors[number], values, where=lanes)


@dataclass(frozen=True)
class Operand:
    """A register, or a constant. ``kind``: s, v (a0 is v256) or c; ``value`` is a constant as written."""

    kind: str
    number: int = 0
    count: int = 1
    value: int | float = 0
    negate: bool = False
    absolute: bool = False
    sign_extend: bool = False

    @property
    def has_float_modifiers(self) -> bool:
        return self.negate or self.absolute


def parse_operand(text: str) -> Operand:
    """An operand from its text."""
    if text.startswith("sext(") and text.endswith(")"):
        return _changed(parse_operand(text[5:-1]), sign_extend=True)
    if text.startswith("lit(") and text.endswith(")"):  # a literal where an inline constant would do
        return parse_operand(text[4:-1])
    if text.startswith("-") and not text[1].isdigit():
        return _changed(parse_operand(text[1:]), negate=True)
    if text.startswith("neg(") and text.endswith(")"):
        return _changed(parse_operand(text[4:-1]), negate=True)
    if text.startswith("|") and text.endswith("|"):
        return _changed(parse_operand(text[1:-1]), absolute=True)
    if text in SPECIAL:
        return Operand("s", *SPECIAL[text])
    if match := REGISTER.match(text):
        first = int(match[2] or match[3])
        count = int(match[4]) - first + 1 if match[4] else 1
        return Operand("s" if match[1] == "s" else "v", first + 256 * (match[1] == "a"), count)
    if FLOAT_CONSTANT.match(text):
        return Operand("c", value=float(text))
    try:
        return Operand("c", value=int(text, 0))
    except ValueError:
        raise UnknownInstruction(f"operand {text!r} is not emulated") from None


def _changed(operand: Operand, **changes: bool) -> Operand:
    return Operand(**{**vars(operand), **changes})


def constant_bits(value: int | float, width: int) -> int:
    """A constant as the bits that an operand of 32 or 64 bits sees."""
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f" if width == 32 else "<d", value), "little")
    if width == 64 and value > 2**31 - 1:
        raise UnknownInstruction(f"literal {value:#x} of a 64-bit operand: how it is extended depends on the type")
    return value & (1 << width) - 1


def scalar_reader(operand: Operand, width: int):
    """A function wave -> int that reads a scalar operand of 32 or 64 bits."""
    if operand.kind == "c":
        value = constant_bits(operand.value, width)
        return lambda wave: value
    if operand.kind != "s" or operand.has_float_modifiers:
        raise UnknownInstruction(f"{operand} is no scalar operand")
    number, count = operand.number, operand.count
    assert count * 32 == width, f"{operand} for a width of {width}"
    return lambda wave: wave.scalar(number, count)


def vector_reader(operand: Operand, width: int):
    """A function wave -> [64] uint32 or uint64 that reads a vector operand of 32 or 64 bits."""
    number = operand.number
    if operand.kind == "v":
        if width == 32:
            return lambda wave: wave.vectors[number]
        return lambda wave: wave.vectors[number].astype(U64) | wave.vectors[number + 1].astype(U64) << U64(32)
    dtype = U32 if width == 32 else U64
    if operand.kind == "c":
        values = np.full(LANES, constant_bits(operand.value, width), dtype)
        return lambda wave: values
    count = width // 32
    return lambda wave: np.full(LANES, wave.scalar(number, count), dtype)


def vector_writer(operand: Operand, width: int):
    """A function (wave, values [64], lanes [64] bool) that writes a vector register or pair."""
    if operand.kind != "v":
        raise UnknownInstruction(f"{operand} is no vector destination")
    number = operand.number
    if width == 32:
        return lambda wave, values, lanes: wave.write_vector(number, values.view(U32), lanes)

    def write(wave: Wave, values: np.ndarray, lanes: np.ndarray) -> None:
        whole = values.view(U64)
        wave.write_vector(number, whole.astype(U32), lanes)
        wave.write_vector(number + 1, (whole >> U64(32)).astype(U32), lanes)

    return write
