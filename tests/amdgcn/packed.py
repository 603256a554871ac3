"""Packed float32 pairs (v_pk_*), and conversions to and from pairs of fp8.

op_sel picks, for the low result, the half of each source; op_sel_hi does so for the high one (and is all ones unless
said). A constant's high half is only taken where the constant is 0: compilers broadcast the low one instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import conversions
from .chip import Chip
from .decode import Instruction, numbers
from .registers import U32, Operand, UnknownInstruction, Wave, constant_bits, parse_operand, vector_reader
from .vector_float import F32, SIGN, flush, fma

PAIRS = {"v_pk_add_f32": np.add, "v_pk_mul_f32": np.multiply, "v_pk_fma_f32": fma}
LOW_16, HIGH_16 = U32(0xFFFF), U32(0xFFFF0000)


def bind(instruction: Instruction, chip: Chip) -> Callable[[Wave], None] | None:
    """The instruction as a function of the wave, None when this module does not know it."""
    if instruction.name in PAIRS:
        return _bind_pair(PAIRS[instruction.name], instruction)
    if instruction.name == "v_pk_mov_b32":
        return _bind_pair_move(instruction)
    if instruction.name == "v_cvt_pk_fp8_f32":
        return _bind_to_fp8(instruction, chip)
    if instruction.name == "v_cvt_pk_f32_fp8":
        return _bind_from_fp8(instruction, chip)
    return None


def _known(instruction: Instruction, *names: str) -> dict[str, list[int]]:
    if unknown := [key for key in instruction.modifiers if key not in names]:
        raise UnknownInstruction(f"{instruction}: modifiers {unknown} are not emulated")
    return {key: numbers(value) for key, value in instruction.modifiers.items()}


def _half_reader(operand: Operand, high: int, negate: int = 0) -> Callable[[Wave], np.ndarray]:
    """One half of a register pair, as bits."""
    if operand.has_float_modifiers:
        raise UnknownInstruction("a packed operand has neg_lo and neg_hi, found - or | |")
    if operand.kind == "c":
        if high and operand.value:
            raise UnknownInstruction(f"the high half of the constant {operand.value} in a packed instruction")
        values = np.full(64, constant_bits(operand.value, 32), U32)
        return lambda wave: values ^ SIGN if negate else values
    assert operand.count == 2, f"{operand} is no pair"
    read = vector_reader(Operand(operand.kind, operand.number + high), 32)
    return lambda wave: read(wave) ^ SIGN if negate else read(wave)


def _bind_pair(function: Callable, instruction: Instruction) -> Callable[[Wave], None]:
    result, *sources = [parse_operand(text) for text in instruction.operands]
    said = _known(instruction, "op_sel", "op_sel_hi", "neg_lo", "neg_hi")
    zeros, ones = [0] * len(sources), [1] * len(sources)
    picks = (said.get("op_sel", zeros), said.get("op_sel_hi", ones))
    signs = (said.get("neg_lo", zeros), said.get("neg_hi", zeros))
    readers = [
        [_half_reader(source, pick, sign) for source, pick, sign in zip(sources, *each, strict=True)]
        for each in zip(picks, signs, strict=True)
    ]

    def step(wave: Wave) -> None:
        # Both halves are read before either is written.
        values = [[read(wave).view(F32) for read in half] for half in readers]
        if wave.denormals_32 != 3:
            values = [[flush(value) for value in half] for half in values] if wave.denormals_32 != 1 else values
        results = [function(*half) for half in values]
        for number, value in enumerate(results):
            value = flush(value) if wave.denormals_32 in (0, 1) else value
            wave.write_vector(result.number + number, value.view(U32), wave.exec)

    return step


def _bind_pair_move(instruction: Instruction) -> Callable[[Wave], None]:
    result, low, high = [parse_operand(text) for text in instruction.operands]
    picks = _known(instruction, "op_sel", "op_sel_hi").get("op_sel", [0, 0])
    readers = [_half_reader(low, picks[0]), _half_reader(high, picks[1])]

    def step(wave: Wave) -> None:
        for number, values in enumerate([read(wave).copy() for read in readers]):
            wave.write_vector(result.number + number, values, wave.exec)

    return step


def _float_reader(operand: Operand) -> Callable[[Wave], np.ndarray]:
    read = vector_reader(operand, 32)

    def changed(wave: Wave) -> np.ndarray:
        bits = read(wave)
        bits = bits & ~SIGN if operand.absolute else bits
        return (bits ^ SIGN if operand.negate else bits).view(F32)

    return changed


def _bind_to_fp8(instruction: Instruction, chip: Chip) -> Callable[[Wave], None]:
    result, first, second = [parse_operand(text) for text in instruction.operands]
    to_high = _known(instruction, "op_sel").get("op_sel", [0, 0, 0])[2]
    readers = [_float_reader(first), _float_reader(second)]

    def step(wave: Wave) -> None:
        low, high = [
            conversions.fp8_bits(read(wave), chip.fp8_is_fnuz, chip.fnuz_negative_zero).astype(U32) for read in readers
        ]
        pair, old = low | high << U32(8), wave.vectors[result.number]
        whole = old & LOW_16 | pair << U32(16) if to_high else old & HIGH_16 | pair
        wave.write_vector(result.number, whole, wave.exec)

    return step


def _bind_from_fp8(instruction: Instruction, chip: Chip) -> Callable[[Wave], None]:
    result, source = [parse_operand(text) for text in instruction.operands]
    place = instruction.modifiers.get("src0_sel", "WORD_0")
    if set(instruction.modifiers) - {"src0_sel"} or place not in ("WORD_0", "WORD_1"):
        raise UnknownInstruction(f"{instruction}: only src0_sel of a word is emulated")
    read, down = vector_reader(source, 32), U32(16 if place == "WORD_1" else 0)

    def step(wave: Wave) -> None:
        word = read(wave) >> down
        for number in range(2):
            values = conversions.fp8_values(word >> U32(8 * number), chip.fp8_is_fnuz)
            wave.write_vector(result.number + number, values.view(U32), wave.exec)

    return step
