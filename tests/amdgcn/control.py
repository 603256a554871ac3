"""Branches, waits, barriers, the end, and scalar registers that are read or written specially."""

from __future__ import annotations

import re
from collections.abc import Callable

from .decode import Instruction
from .registers import EXEC, VCC, UnknownInstruction, Wave, parse_operand
from .scalar import signed

CONDITIONS = {
    "s_branch": lambda wave: True,
    "s_cbranch_scc0": lambda wave: not wave.scc,
    "s_cbranch_scc1": lambda wave: wave.scc,
    "s_cbranch_vccz": lambda wave: wave.scalar(VCC, 2) == 0,
    "s_cbranch_vccnz": lambda wave: wave.scalar(VCC, 2) != 0,
    "s_cbranch_execz": lambda wave: wave.scalar(EXEC, 2) == 0,
    "s_cbranch_execnz": lambda wave: wave.scalar(EXEC, 2) != 0,
}
# Scheduling hints and cache maintenance: memory here has no caches.
NOTHING_TO_DO = (
    "s_nop",
    "s_sleep",
    "s_setprio",
    "s_sethalt",
    "s_icache_inv",
    "s_dcache_wb",
    "buffer_inv",
    "buffer_wbl2",
)
COUNTER = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)$")
MODE_DENORMALS_32 = "hwreg(HW_REG_MODE, 4, 2)"


def bind(instruction: Instruction) -> Callable[[Wave], None] | None:
    """The instruction as a function of the wave, None when this module does not know it."""
    name = instruction.name
    if name in CONDITIONS:
        return _bind_branch(CONDITIONS[name], instruction)
    if name in NOTHING_TO_DO:
        return lambda wave: None
    if name == "s_waitcnt":
        return _bind_wait(instruction)
    if name in ("s_barrier", "s_endpgm"):
        state = "barrier" if name == "s_barrier" else "ended"
        return lambda wave: setattr(wave, "state", state)
    if name == "s_getpc_b64":
        result, after = parse_operand(instruction.operands[0]), instruction.address + instruction.size
        return lambda wave: wave.set_scalar(result.number, 2, after)
    if name == "s_setreg_imm32_b32":
        return _bind_set_mode(instruction)
    return None


def _bind_branch(taken: Callable[[Wave], bool], instruction: Instruction) -> Callable[[Wave], None]:
    distance = signed(int(instruction.operands[0], 0) & 0xFFFF, 16)
    target = instruction.address + 4 + 4 * distance

    def step(wave: Wave) -> None:
        if taken(wave):
            wave.pc = target

    return step


def _bind_wait(instruction: Instruction) -> Callable[[Wave], None]:
    matches = [COUNTER.match(operand) for operand in instruction.operands]
    if not all(matches):
        raise UnknownInstruction(f"{instruction}: a counter is not emulated")
    waits = [(match[1], int(match[2])) for match in matches if match]

    def step(wave: Wave) -> None:
        for counter, left in waits:
            wave.round_trips.wait(counter, left)

    return step


def _bind_set_mode(instruction: Instruction) -> Callable[[Wave], None]:
    """Only the treatment of float32 denormals, which a kernel may switch around a division."""
    register, value = instruction.operands
    if register != MODE_DENORMALS_32:
        raise UnknownInstruction(f"{instruction}: only {MODE_DENORMALS_32} is emulated")
    return lambda wave: setattr(wave, "denormals_32", int(value, 0))
