"""Loads and stores: global, flat, buffer (untyped, no stride), LDS, and scalar loads.

Addresses: global is 64 bits of two vector registers, or a scalar base and a 32-bit unsigned vector offset; buffer is a
128-bit resource (48-bit base, byte count) where a load past the end gives 0 and a store there does nothing. The flat
apertures of LDS and scratch do not exist here, so a flat access to them faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .decode import Instruction
from .memory import Memory, MemoryFault, lines_touched
from .registers import LANES, U32, U64, UnknownInstruction, Wave, parse_operand, scalar_reader, vector_reader

VECTOR = re.compile(r"(global|flat|buffer)_(load|store)_(\w+)$")
LDS = re.compile(r"ds_(read|write)_(\w+)$")
SCALAR = re.compile(r"s_load_dword(?:x(\d+))?$")
# bytes, signed, bits of the register that a narrow value occupies, whether the rest of the register is kept
FORMS = {
    "ubyte": (1, False, 0, False), "sbyte": (1, True, 0, False), "byte": (1, False, 0, False),
    "ushort": (2, False, 0, False), "sshort": (2, True, 0, False), "short": (2, False, 0, False),
    "ubyte_d16": (1, False, 0, True), "ubyte_d16_hi": (1, False, 16, True), "byte_d16_hi": (1, False, 16, False),
    "short_d16": (2, False, 0, True), "short_d16_hi": (2, False, 16, True),
    "dword": (4, False, 0, False), "dwordx2": (8, False, 0, False), "dwordx3": (12, False, 0, False),
    "dwordx4": (16, False, 0, False),
}  # fmt: skip
LDS_FORMS = {"b8": "byte", "u8": "ubyte", "i8": "sbyte", "b16": "short", "u16": "ushort", "i16": "sshort",
             "b32": "dword", "b64": "dwordx2", "b96": "dwordx3", "b128": "dwordx4", "u16_d16": "short_d16",
             "u16_d16_hi": "short_d16_hi", "b16_d16_hi": "short_d16_hi"}  # fmt: skip
CACHE_HINTS = ("nt", "sc0", "sc1")
# The address of each lane [64] uint64, and which lanes are in range [64] bool.
Addresses = Callable[[Wave], tuple[np.ndarray, np.ndarray]]


def bind(instruction: Instruction) -> Callable[[Wave], None] | None:
    """The instruction as a function of the wave, None when this module does not know it."""
    if match := VECTOR.match(instruction.name):
        return _bind_vector(*match.groups(), instruction)
    if match := LDS.match(instruction.name):
        return _bind_lds(*match.groups(), instruction)
    if match := SCALAR.match(instruction.name):
        return _bind_scalar(int(match[1] or 1), instruction)
    return None


def _offset(instruction: Instruction, *known: str) -> int:
    if unknown := [key for key in instruction.modifiers if key not in ("offset", *known)]:
        raise UnknownInstruction(f"{instruction}: modifiers {unknown} are not emulated")
    return int(instruction.modifiers.get("offset", "0"), 0)


def _form(name: str, instruction: Instruction) -> tuple[int, bool, int, bool]:
    if name not in FORMS:
        raise UnknownInstruction(f"{instruction}: this access is not emulated")
    return FORMS[name]


def _bind_vector(space: str, what: str, form: str, instruction: Instruction) -> Callable[[Wave], None]:
    form_facts = _form(form, instruction)
    operands = list(instruction.operands)
    data = parse_operand(operands.pop(1 if what == "store" and space != "buffer" else 0))
    addresses = (
        _buffer_addresses(operands, instruction) if space == "buffer" else _global_addresses(operands, instruction)
    )
    transfer = _load(data.number, *form_facts) if what == "load" else _store(data.number, *form_facts)
    width = form_facts[0]

    def step(wave: Wave) -> None:
        where, inside = addresses(wave)
        active = np.flatnonzero(wave.exec & inside)
        try:
            buffers = transfer(wave, wave.memory, where[active], active)
        except MemoryFault as fault:
            raise MemoryFault(f"{instruction}: {fault}") from None
        wave.round_trips.issue("vmcnt")
        if space == "flat":
            wave.round_trips.issue("lgkmcnt")
        lines = lines_touched(where[active], width) if active.size else 0
        wave.counters.memory_access(what, buffers or {"(no lane)"}, width, active.size, lines)

    return step


def _global_addresses(operands: list[str], instruction: Instruction) -> Addresses:
    offset = U64(_offset(instruction, *CACHE_HINTS) & 2**64 - 1)
    everywhere = np.ones(LANES, bool)
    vector = parse_operand(operands[0])
    if len(operands) == 1 or operands[1] == "off":
        read = vector_reader(vector, 64)
        return lambda wave: (read(wave) + offset, everywhere)
    read_offset, read_base = vector_reader(vector, 32), scalar_reader(parse_operand(operands[1]), 64)
    return lambda wave: (read_offset(wave).astype(U64) + U64(read_base(wave)) + offset, everywhere)


def _buffer_addresses(operands: list[str], instruction: Instruction) -> Addresses:
    offset = _offset(instruction, "offen", *CACHE_HINTS)
    width = FORMS[VECTOR.match(instruction.name)[3]][0]
    resource, read_scalar = parse_operand(operands[1]), scalar_reader(parse_operand(operands[2]), 32)
    if "offen" in instruction.modifiers:
        read = vector_reader(parse_operand(operands[0]), 32)
    else:
        read = lambda wave: np.zeros(LANES, U32)  # noqa: E731

    def addresses(wave: Wave) -> tuple[np.ndarray, np.ndarray]:
        base, size = wave.scalar(resource.number, 2), wave.scalar(resource.number + 2)
        if base >> 48:
            raise UnknownInstruction(f"{instruction}: a buffer resource with a stride or swizzle")
        within = read(wave).astype(U64) + U64(offset)
        return within + U64(read_scalar(wave) + base), within + U64(width) <= U64(size)

    return addresses


def _load(first: int, width: int, is_signed: bool, low_bit: int, keeps_rest: bool):
    def transfer(wave: Wave, memory: Memory, where: np.ndarray, active: np.ndarray) -> set[str]:
        loaded, buffers = memory.load(where, active, width)
        data = np.zeros((LANES, max(width, 4)), np.uint8)  # zero where a buffer access is out of range
        data[active, :width] = loaded
        words = data.view(U32)
        if is_signed:
            down = np.int32(32 - 8 * width)
            words = (words.view(np.int32) << down >> down).view(U32)
        if keeps_rest:
            kept = wave.vectors[first] & U32(0xFFFF0000 if low_bit == 0 else 0xFFFF)
            words = (kept | words[:, 0] << U32(low_bit))[:, None]
        for number in range(words.shape[1]):
            wave.write_vector(first + number, words[:, number], wave.exec)
        return buffers

    return transfer


def _store(first: int, width: int, is_signed: bool, low_bit: int, keeps_rest: bool):
    def transfer(wave: Wave, memory: Memory, where: np.ndarray, active: np.ndarray) -> set[str]:
        words = wave.vectors[first : first + max(width // 4, 1)][:, active] >> U32(low_bit)
        values = np.ascontiguousarray(words.T).view(np.uint8)[:, :width]
        return memory.store(where, active, values)

    return transfer


def _bind_lds(what: str, form: str, instruction: Instruction) -> Callable[[Wave], None]:
    form_facts = _form(LDS_FORMS.get(form, form), instruction)
    offset = U64(_offset(instruction))
    operands = [parse_operand(text) for text in instruction.operands]
    address, data = (operands[1], operands[0]) if what == "read" else (operands[0], operands[1])
    transfer = _load(data.number, *form_facts) if what == "read" else _store(data.number, *form_facts)
    read = vector_reader(address, 32)

    def step(wave: Wave) -> None:
        memory = Memory()
        memory.add("LDS", wave.lds, address=0, writable=True)
        active = np.flatnonzero(wave.exec)
        try:
            transfer(wave, memory, (read(wave).astype(U64) + offset)[active], active)
        except MemoryFault as fault:
            raise MemoryFault(f"{instruction}: {fault}") from None
        wave.round_trips.issue("lgkmcnt")

    return step


def _bind_scalar(count: int, instruction: Instruction) -> Callable[[Wave], None]:
    result, base, offset = [parse_operand(text) for text in instruction.operands]
    read_base, read_offset = scalar_reader(base, 64), scalar_reader(offset, 32)
    extra = _offset(instruction)
    lane = np.zeros(1, np.int64)

    def step(wave: Wave) -> None:
        # The hardware ignores the two lowest bits.
        address = (read_base(wave) + read_offset(wave) + extra) & ~3
        try:
            data, _ = wave.memory.load(np.array([address], U64), lane, 4 * count)
        except MemoryFault as fault:
            raise MemoryFault(f"{instruction}: {fault}") from None
        wave.set_scalar(result.number, count, int.from_bytes(data.tobytes(), "little"))
        wave.round_trips.issue("lgkmcnt")

    return step
