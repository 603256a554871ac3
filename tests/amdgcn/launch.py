"""Runs a kernel of a code object: waves one after the other, a workgroup's waves in turns from barrier to barrier."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sglang_dspark.bench.kernels.code_object import CodeObject, Descriptor

from . import control, lanes, memory_access, packed, scalar, toolchain, vector
from .chip import Chip
from .counters import Counters, kind_of
from .decode import Instruction, parse_listing
from .memory import Memory
from .registers import LANES, U32, UnknownInstruction, Wave

# Properties of the descriptor: what the first scalar registers hold, in this order, with the registers each takes.
USER_SGPRS = (("private segment buffer", 4), ("dispatch pointer", 2), ("queue pointer", 2), ("kernarg pointer", 2),
              ("dispatch id", 2), ("flat scratch", 2), ("private segment size", 1))  # fmt: skip
KERNARG_POINTER = 3
# A kernel with preloaded arguments starts with 256 bytes that load them; firmware that preloads skips those.
PRELOAD_PROLOGUE_BYTES = 256
MOST_INSTRUCTIONS = 1_000_000


def bind(instruction: Instruction, chip: Chip) -> Callable[[Wave], None]:
    """The instruction as a function of the wave."""
    step = (
        scalar.bind(instruction)
        or control.bind(instruction)
        or memory_access.bind(instruction)
        or packed.bind(instruction, chip)
        or lanes.bind(instruction, chip)
        or vector.bind(instruction, chip)
    )
    if step is None:
        raise UnknownInstruction(f"{instruction}: {instruction.name} is not emulated for {chip.name}")
    return step


@dataclass(frozen=True)
class Bound:
    """An instruction ready to execute."""

    instruction: Instruction
    step: Callable[[Wave], None]
    kind: str
    following: int


class Kernel:
    """One kernel of a code object, with every instruction of its function bound."""

    def __init__(self, image: bytes, name: str, chip: Chip) -> None:
        self.name, self.chip = name, chip
        self.code_object = CodeObject(image)
        self.descriptor: Descriptor = self.code_object.descriptor(name)
        self.metadata = self.code_object.metadata[name]
        start, size = self.code_object.symbols[name]
        listing = parse_listing(toolchain.disassemble(image, name))
        self.program = {
            one.address: Bound(one, bind(one, chip), kind_of(one.name), one.address + one.size)
            for one in listing
            if start <= one.address < start + size  # beyond is padding
        }
        self._check()

    def launch(
        self,
        grid: tuple[int, ...],  # workgroups
        block: tuple[int, ...],  # work-items a workgroup
        arguments: bytes,
        memory: Memory,
        preload: bool = True,  # whether the firmware preloads kernel arguments
        lds_bytes: int = 0,  # beside what the kernel declares itself
    ) -> Counters:
        """Run all workgroups. Writes memory's writable buffers; returns what was executed."""
        kernargs = np.zeros(max(self.descriptor.kernarg_bytes, 4), np.uint8)
        if not self._explicit_bytes() <= len(arguments) <= kernargs.size:
            raise ValueError(f"{self.name} takes {self._explicit_bytes()} bytes of arguments, found {len(arguments)}")
        kernargs[: len(arguments)] = np.frombuffer(arguments, np.uint8)
        visible = self._visible(memory, kernargs)
        lds_bytes += self.descriptor.lds_bytes
        total = Counters()
        with np.errstate(all="ignore"):
            for group in itertools.product(*[range(count) for count in reversed(_three(grid))]):
                for counters in self._run_group(group[::-1], _three(block), kernargs, visible, preload, lds_bytes):
                    total.add(counters)
        return total

    def _explicit_bytes(self) -> int:
        explicit = [one for one in self.metadata.get(".args", []) if not one[".value_kind"].startswith("hidden_")]
        return max((one[".offset"] + one[".size"] for one in explicit), default=0)

    def _check(self) -> None:
        if self.descriptor.scratch_bytes:
            raise UnknownInstruction(f"{self.name} uses scratch memory ({self.descriptor.scratch_bytes} bytes)")
        if self.descriptor.rounding_32:
            raise UnknownInstruction(f"{self.name} does not round to nearest even")
        if self.metadata[".wavefront_size"] != LANES:
            raise UnknownInstruction(f"{self.name} has waves of {self.metadata['.wavefront_size']}")

    def _visible(self, memory: Memory, kernargs: np.ndarray) -> Memory:
        visible = Memory()
        for buffer in memory.buffers:
            visible.add(buffer.name, buffer.data, buffer.address, buffer.writable)
        visible.add("kernel arguments", kernargs)
        for address, data in self.code_object.constant_data():
            visible.add(f"code object {address:#x}", data, address)
        return visible

    def _run_group(self, group, block, kernargs, memory: Memory, preload: bool, lds_bytes: int) -> list[Counters]:
        lds = np.full(lds_bytes, 0xA5, np.uint8)
        count = block[0] * block[1] * block[2]
        waves = [Wave(self.chip, memory, lds) for _ in range(-(-count // LANES))]
        for number, wave in enumerate(waves):
            self._start(wave, number, group, block, kernargs, preload)
        while any(wave.state != "ended" for wave in waves):
            for wave in waves:
                if wave.state != "ended":
                    wave.state = "running"
                    self._run(wave)
        for wave in waves:
            wave.counters.round_trips = wave.round_trips.depth
        return [wave.counters for wave in waves]

    def _start(self, wave: Wave, number: int, group, block, kernargs: np.ndarray, preload: bool) -> None:
        """What the hardware sets up: user SGPRs, preloaded arguments, workgroup ids, work-item ids."""
        facts, at = self.descriptor, 0
        for bit, (what, registers) in enumerate(USER_SGPRS):
            if not facts.properties >> bit & 1:
                continue
            if bit == KERNARG_POINTER:
                wave.set_scalar(at, 2, kernargs.ctypes.data)
            elif bit in (0, 1, 2, 5):
                raise UnknownInstruction(f"{self.name} wants the {what}")
            at += registers
        wave.pc = facts.entry
        if facts.preload_dwords and preload:
            wave.pc += PRELOAD_PROLOGUE_BYTES
            words = np.concatenate((kernargs, np.zeros(256, np.uint8)))[: kernargs.size // 4 * 4 + 256].view(U32)
            for index in range(facts.preload_dwords):
                wave.set_scalar(at + index, 1, int(words[facts.preload_offset + index]))
        at = facts.user_sgprs
        for wanted, value in zip(facts.workgroup_ids, group, strict=True):
            if wanted:
                wave.set_scalar(at, 1, value)
                at += 1
        items = number * LANES + np.arange(LANES)
        x, y, z = items % block[0], items // block[0] % block[1], items // (block[0] * block[1])
        wave.vectors[0] = (x | y << 10 | z << 20).astype(U32)
        wave.exec = items < block[0] * block[1] * block[2]
        wave.denormals_32 = facts.denormals_32

    def _run(self, wave: Wave) -> None:
        """Until the wave ends or reaches a barrier."""
        kinds, names = wave.counters.kinds, wave.counters.names
        for _ in range(MOST_INSTRUCTIONS):
            bound = self.program.get(wave.pc)
            if bound is None:
                raise UnknownInstruction(f"{self.name} runs to {wave.pc:#x}, outside its function")
            wave.pc = bound.following
            kinds[bound.kind] += 1
            names[bound.instruction.name] += 1
            bound.step(wave)
            if wave.state != "running":
                return
        raise RuntimeError(f"{self.name}: a wave executed {MOST_INSTRUCTIONS} instructions without an end")


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    return (*sizes, 1, 1)[:3]
