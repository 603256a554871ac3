"""Vector instructions: a table entry and the operands' text become a function of the wave.

Handled once for all of them: operand types, float modifiers, denormals, DPP, SDWA, EXEC.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import dpp, sdwa
from .chip import GFX950, Chip
from .compare import COMPARISONS
from .decode import Instruction
from .registers import (
    EXEC,
    U32,
    VCC,
    Operand,
    UnknownInstruction,
    Wave,
    lane_mask,
    parse_operand,
    scalar_pair,
    scalar_reader,
    vector_reader,
    vector_writer,
)
from .vector_float import FLOAT, FLOAT_WITH_WAVE, ONLY_GFX950, SIGN, flush
from .vector_integer import INTEGER, bit_operation

DTYPES = {"u": U32, "b": U32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64}
WIDTH = {"u": 32, "b": 32, "i": 32, "f": 32, "U": 64, "I": 64}
DPP_MODIFIERS = ("quad_perm", "row_", "wave_", "bank_mask", "bound_ctrl")
SDWA_MODIFIERS = ("dst_sel", "dst_unused", "src0_sel", "src1_sel")
FLUSHES_SOURCES, FLUSHES_RESULTS = (0, 2), (0, 1)  # MODE's values for float32
Step = Callable[[Wave], None]
TABLE = {**INTEGER, **FLOAT, **COMPARISONS}


def bind(instruction: Instruction, chip: Chip) -> Step | None:
    """The instruction as a function of the wave, None when this module does not know it."""
    name = instruction.name
    if name == "v_bitop3_b32" and chip.name == GFX950.name:
        table = int(instruction.modifiers.get("bitop3", "0"), 0)
        return _bind("u:uuu", lambda a, b, c: bit_operation(a, b, c, table), instruction, ("bitop3",))
    if name.startswith("v_cmpx_"):
        plain = name.replace("v_cmpx_", "v_cmp_")
        return _bind_cmpx(*COMPARISONS[plain], instruction) if plain in COMPARISONS else None
    if name in ONLY_GFX950 and chip.name == GFX950.name:
        return _bind(*ONLY_GFX950[name], instruction)
    if name in FLOAT_WITH_WAVE:
        return _bind(*FLOAT_WITH_WAVE[name], instruction, needs_wave=True)
    return _bind(*TABLE[name], instruction) if name in TABLE else None


def _bind(
    signature: str, function: Callable, instruction: Instruction, known: tuple[str, ...] = (), needs_wave: bool = False
) -> Step:
    result_types, source_types = signature.split(":")
    written = source_types.rstrip("+v")
    operands = [parse_operand(text) for text in instruction.operands]
    if len(operands) != len(result_types) + len(written):
        raise UnknownInstruction(f"{instruction}: expected {len(result_types) + len(written)} operands")
    results, sources = operands[: len(result_types)], operands[len(result_types) :]
    places, move = _modifiers(instruction, known)

    readers = [_reader(*pair, place) for *pair, place in zip(sources, written, places.sources, strict=False)]
    if source_types.endswith("+"):
        readers.append(_reader(results[0], result_types[0], "DWORD"))
    if source_types.endswith("v"):
        readers.append(lambda wave: lane_mask(wave.scalar(VCC, 2)))
    writers = [_writer(operand, code, places) for operand, code in zip(results, result_types, strict=True)]

    def step(wave: Wave) -> None:
        active = lanes = wave.exec
        values = [read(wave) for read in readers]
        if move:
            values[0], lanes = move.apply(values[0], active)
        result = function(wave, *values) if needs_wave else function(*values)
        for write, value in zip(writers, result if isinstance(result, tuple) else (result,), strict=True):
            write(wave, value, lanes)

    return step


def _bind_cmpx(signature: str, function: Callable, instruction: Instruction) -> Step:
    """Like v_cmp, and EXEC gets the result as well."""
    compare = _bind(signature, function, instruction)
    result = parse_operand(instruction.operands[0])

    def step(wave: Wave) -> None:
        compare(wave)
        wave.set_scalar(EXEC, 2, wave.scalar(result.number, 2))

    return step


class _Places:
    """Which parts of the operands SDWA takes; without SDWA, all of them."""

    def __init__(self, modifiers: dict[str, str]) -> None:
        self.sources = (modifiers.get("src0_sel", "DWORD"), modifiers.get("src1_sel", "DWORD"), "DWORD", "DWORD")
        self.result = modifiers.get("dst_sel", "DWORD")
        self.unused = modifiers.get("dst_unused", "UNUSED_PAD")


def _modifiers(instruction: Instruction, known: tuple[str, ...]) -> tuple[_Places, dpp.LaneMove | None]:
    """SDWA places and the DPP move. A modifier that neither knows is an error."""
    modifiers = {key: value for key, value in instruction.modifiers.items() if key not in known}
    if instruction.encoding == "dpp":
        return _Places({}), dpp.parse(modifiers)
    if unknown := [key for key in modifiers if instruction.encoding != "sdwa" or key not in SDWA_MODIFIERS]:
        raise UnknownInstruction(f"{instruction}: modifiers {unknown} are not emulated")
    return _Places(modifiers), None


def _reader(operand: Operand, code: str, place: str) -> Callable[[Wave], np.ndarray]:
    if code == "m":
        read_pair = scalar_reader(operand, 64)
        return lambda wave: lane_mask(read_pair(wave))
    if operand.has_float_modifiers and code not in "fb":
        raise UnknownInstruction(f"float modifiers on the integer operand {operand}")
    read, dtype = vector_reader(operand, WIDTH[code]), DTYPES[code]
    if place == "DWORD" and not operand.has_float_modifiers and code != "f":
        return lambda wave: read(wave).view(dtype)

    def read_and_change(wave: Wave) -> np.ndarray:
        values = read(wave)
        if place != "DWORD":
            values = sdwa.select(values, place, operand.sign_extend)
        if operand.absolute:
            values = values & ~SIGN
        if operand.negate:
            values = values ^ SIGN
        values = values.view(dtype)
        return flush(values) if code == "f" and wave.denormals_32 in FLUSHES_SOURCES else values

    return read_and_change


def _writer(operand: Operand, code: str, places: _Places) -> Callable[[Wave, np.ndarray, np.ndarray], None]:
    if code == "m":
        if operand.kind != "s" or operand.count != 2:
            raise UnknownInstruction(f"{operand} cannot hold a lane mask")
        return lambda wave, mask, lanes: wave.set_scalar(operand.number, 2, scalar_pair(mask & lanes))
    write, width = vector_writer(operand, WIDTH[code]), WIDTH[code]

    def finish_and_write(wave: Wave, values: np.ndarray, lanes: np.ndarray) -> None:
        if code == "f" and wave.denormals_32 in FLUSHES_RESULTS:
            values = flush(values)
        if width == 32 and values.dtype.itemsize == 8:
            values = values.astype(U32)  # the low half of a 64-bit intermediate
        if places.result != "DWORD":
            values = sdwa.merge(wave.vectors[operand.number], values.view(U32), places.result, places.unused)
        write(wave, values, lanes)

    return finish_and_write
