"""Values that move between lanes and scalar registers. None of these looks at EXEC but v_readfirstlane and ds_*."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .chip import GFX950, Chip
from .decode import Instruction
from .registers import LANES, U32, UnknownInstruction, Wave, parse_operand, scalar_reader, vector_reader

LANE = np.arange(LANES)


def bind(instruction: Instruction, chip: Chip) -> Callable[[Wave], None] | None:
    """The instruction as a function of the wave, None when this module does not know it."""
    name, operands = instruction.name, [parse_operand(text) for text in instruction.operands]
    if name == "v_readfirstlane_b32":
        return _read_lane(operands[0], operands[1], lambda wave: int(np.argmax(wave.exec)))
    if name == "v_readlane_b32":
        return _read_lane(operands[0], operands[1], scalar_reader(operands[2], 32))
    if name == "v_writelane_b32":
        return _write_lane(operands[0], scalar_reader(operands[1], 32), scalar_reader(operands[2], 32))
    if name in ("v_permlane16_swap_b32", "v_permlane32_swap_b32") and chip.name == GFX950.name:
        return _swap_rows(operands[0].number, operands[1].number, 16 if "16" in name else 32)
    if name in ("ds_bpermute_b32", "ds_permute_b32") and not instruction.modifiers:
        return _permute(operands, pushes=name == "ds_permute_b32")
    if name == "ds_swizzle_b32":
        return _swizzle(operands, _swizzle_source(instruction))
    return None


def _read_lane(result, source, lane: Callable[[Wave], int]) -> Callable[[Wave], None]:
    read = vector_reader(source, 32)
    return lambda wave: wave.set_scalar(result.number, 1, int(read(wave)[lane(wave) % LANES]))


def _write_lane(result, value: Callable[[Wave], int], lane: Callable[[Wave], int]) -> Callable[[Wave], None]:
    def step(wave: Wave) -> None:
        wave.vectors[result.number, lane(wave) % LANES] = value(wave)

    return step


def _swap_rows(first: int, second: int, width: int) -> Callable[[Wave], None]:
    """The odd groups of lanes of the first register change places with the even groups of the second."""
    odd = LANE // width % 2 == 1

    def step(wave: Wave) -> None:
        one, other = wave.vectors[first].copy(), wave.vectors[second].copy()
        wave.write_vector(first, other[np.where(odd, LANE - width, LANE)], wave.exec & odd)
        wave.write_vector(second, one[np.where(odd, LANE, np.minimum(LANE + width, 63))], wave.exec & ~odd)

    return step


def _permute(operands: list, pushes: bool) -> Callable[[Wave], None]:
    """By the LDS unit. A lane pulls from, or pushes to, lane address / 4; a lane that is off gives 0."""
    result, address, data = (operand.number for operand in operands)

    def step(wave: Wave) -> None:
        active, values = wave.exec, wave.vectors[data]
        other = (wave.vectors[address] >> U32(2) & U32(63)).astype(np.int64)
        moved = np.zeros(LANES, U32)
        if pushes:
            moved[other[active]] = values[active]
        else:
            moved = np.where(active[other], values[other], U32(0))
        wave.write_vector(result, moved, active)
        wave.round_trips.issue("lgkmcnt")

    return step


def _swizzle_source(instruction: Instruction) -> np.ndarray:
    """The lane that each reads, by the pattern's name. Patterns work within groups of 32 lanes or less."""
    pattern = instruction.modifiers.get("offset", "")
    if match := re.match(r"swizzle\(SWAP,\s?(\d+)\)$", pattern):
        return LANE ^ int(match[1])
    if match := re.match(r"swizzle\(REVERSE,\s?(\d+)\)$", pattern):
        return LANE ^ int(match[1]) - 1
    if match := re.match(r"swizzle\(BROADCAST,\s?(\d+),\s?(\d+)\)$", pattern):
        return LANE - LANE % int(match[1]) + int(match[2])
    raise UnknownInstruction(f"{instruction}: this pattern is not emulated")


def _swizzle(operands: list, source: np.ndarray) -> Callable[[Wave], None]:
    result, data = (operand.number for operand in operands)

    def step(wave: Wave) -> None:
        values = np.where(wave.exec[source], wave.vectors[data][source], U32(0))
        wave.write_vector(result, values, wave.exec)
        wave.round_trips.issue("lgkmcnt")

    return step
