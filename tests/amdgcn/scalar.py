"""Scalar instructions on Python integers: ``name: (signature, function)``, SCC last in what the function returns.

A signature is "results:sources": u, i 32 bits unsigned and signed; U, I 64 bits; c SCC, which is no operand.
"""

from __future__ import annotations

from collections.abc import Callable

from .decode import Instruction
from .registers import EXEC, LOW_32, LOW_64, UnknownInstruction, Wave, parse_operand, scalar_reader

WIDTH = {"u": 32, "i": 32, "U": 64, "I": 64}


def signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def add_signed(a: int, b: int) -> tuple[int, int]:
    total = a + b
    return total, not -(2**31) <= total < 2**31


def extract(width: int, is_signed: bool) -> Callable:
    """s_bfe: the second source holds the offset and, from bit 16, the width."""

    def evaluate(value: int, field: int) -> tuple[int, int]:
        offset, count = field & (width - 1), field >> 16 & 127
        result = (value & (1 << width) - 1) >> offset & (1 << count) - 1
        if is_signed and count:
            result = signed(result, count)
        return result, result != 0

    return evaluate


def flagged(function: Callable) -> Callable:
    """SCC says whether the result is not zero."""

    def evaluate(*values: int) -> tuple[int, bool]:
        result = function(*values)
        return result, result & LOW_64 != 0

    return evaluate


def logical(function: Callable) -> dict[str, tuple[str, Callable]]:
    return {"b32": ("uc:uu", lambda a, b: _masked(function(a, b), LOW_32)),
            "b64": ("Uc:UU", lambda a, b: _masked(function(a, b), LOW_64))}  # fmt: skip


def _masked(value: int, mask: int) -> tuple[int, bool]:
    return value & mask, value & mask != 0


LOGICAL = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
RELATIONS = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
OPERATIONS = {
    "s_mov_b32": ("u:u", lambda a: a),
    "s_mov_b64": ("U:U", lambda a: a),
    "s_movk_i32": ("u:k", lambda k: k),
    "s_not_b32": ("uc:u", lambda a: _masked(~a, LOW_32)),
    "s_not_b64": ("Uc:U", lambda a: _masked(~a, LOW_64)),
    "s_brev_b32": ("u:u", lambda a: int(f"{a:032b}"[::-1], 2)),
    "s_bcnt1_i32_b32": ("uc:u", flagged(int.bit_count)),
    "s_bcnt1_i32_b64": ("uc:U", flagged(int.bit_count)),
    "s_ff1_i32_b32": ("u:u", lambda a: (a & -a).bit_length() - 1),
    "s_ff1_i32_b64": ("u:U", lambda a: (a & -a).bit_length() - 1),
    "s_flbit_i32_b32": ("u:u", lambda a: 32 - a.bit_length() if a else -1),
    "s_sext_i32_i8": ("u:u", lambda a: signed(a & 0xFF, 8)),
    "s_sext_i32_i16": ("u:u", lambda a: signed(a & 0xFFFF, 16)),
    "s_abs_i32": ("uc:i", flagged(abs)),
    "s_add_u32": ("uc:uu", lambda a, b: (a + b, a + b > LOW_32)),
    "s_addc_u32": ("uc:uuc", lambda a, b, carry: (a + b + carry, a + b + carry > LOW_32)),
    "s_sub_u32": ("uc:uu", lambda a, b: (a - b, a < b)),
    "s_subb_u32": ("uc:uuc", lambda a, b, borrow: (a - b - borrow, a < b + borrow)),
    "s_add_i32": ("uc:ii", add_signed),
    "s_sub_i32": ("uc:ii", lambda a, b: add_signed(a, -b)),
    "s_addk_i32": ("uc:+k", lambda a, k: add_signed(signed(a, 32), k)),
    "s_mul_i32": ("u:uu", lambda a, b: a * b),
    "s_mulk_i32": ("u:+k", lambda a, k: a * k),
    "s_mul_hi_u32": ("u:uu", lambda a, b: a * b >> 32),
    "s_mul_hi_i32": ("u:ii", lambda a, b: a * b >> 32),
    **{f"s_lshl{i}_add_u32": ("uc:uu", lambda a, b, i=i: ((a << i) + b, (a << i) + b > LOW_32)) for i in range(1, 5)},
    "s_min_u32": ("uc:uu", lambda a, b: (min(a, b), a < b)),
    "s_max_u32": ("uc:uu", lambda a, b: (max(a, b), a > b)),
    "s_min_i32": ("uc:ii", lambda a, b: (min(a, b), a < b)),
    "s_max_i32": ("uc:ii", lambda a, b: (max(a, b), a > b)),
    "s_lshl_b32": ("uc:uu", lambda a, b: _masked(a << (b & 31), LOW_32)),
    "s_lshl_b64": ("Uc:Uu", lambda a, b: _masked(a << (b & 63), LOW_64)),
    "s_lshr_b32": ("uc:uu", flagged(lambda a, b: a >> (b & 31))),
    "s_lshr_b64": ("Uc:Uu", flagged(lambda a, b: a >> (b & 63))),
    "s_ashr_i32": ("uc:iu", flagged(lambda a, b: a >> (b & 31))),
    "s_ashr_i64": ("Uc:Iu", flagged(lambda a, b: a >> (b & 63))),
    "s_bfm_b32": ("u:uu", lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    "s_bfe_u32": ("uc:uu", extract(32, False)),
    "s_bfe_i32": ("uc:uu", extract(32, True)),
    "s_bfe_u64": ("Uc:Uu", extract(64, False)),
    "s_bfe_i64": ("Uc:Uu", extract(64, True)),
    "s_pack_ll_b32_b16": ("u:uu", lambda a, b: a & 0xFFFF | b << 16),
    "s_pack_lh_b32_b16": ("u:uu", lambda a, b: a & 0xFFFF | b & 0xFFFF0000),
    "s_pack_hh_b32_b16": ("u:uu", lambda a, b: a >> 16 | b & 0xFFFF0000),
    "s_cselect_b32": ("u:uuc", lambda a, b, scc: a if scc else b),
    "s_cselect_b64": ("U:UUc", lambda a, b, scc: a if scc else b),
    "s_bitset0_b32": ("u:+u", lambda old, b: old & ~(1 << (b & 31))),
    "s_bitset1_b32": ("u:+u", lambda old, b: old | 1 << (b & 31)),
    "s_cmov_b32": ("u:+uc", lambda old, a, scc: a if scc else old),
    "s_cmp_eq_u64": ("c:UU", lambda a, b: a == b),
    "s_cmp_lg_u64": ("c:UU", lambda a, b: a != b),
    "s_bitcmp0_b32": ("c:uu", lambda a, b: not a >> (b & 31) & 1),
    "s_bitcmp1_b32": ("c:uu", lambda a, b: a >> (b & 31) & 1),
    **{f"s_{name}_{width}": entry for name, function in LOGICAL.items() for width, entry in logical(function).items()},
    **{f"s_cmp_{name}_{t}32": (f"c:{t}{t}", relation) for name, relation in RELATIONS.items() for t in "ui"},
    **{f"s_cmpk_{name}_i32": ("c:ik", relation) for name, relation in RELATIONS.items()},
    **{f"s_cmpk_{name}_u32": ("c:uK", relation) for name, relation in RELATIONS.items()},
}


def bind(instruction: Instruction) -> Callable[[Wave], None] | None:
    """The instruction as a function of the wave, None when this module does not know it."""
    name = instruction.name
    if name.endswith("_saveexec_b64"):
        stem = name.removeprefix("s_").removesuffix("_saveexec_b64")
        return _bind_save_exec(LOGICAL[stem], instruction) if stem in LOGICAL else None
    if name not in OPERATIONS:
        return None
    signature, function = OPERATIONS[name]
    result_types, source_types = signature.split(":")
    operands = [parse_operand(text) for text in instruction.operands]
    has_result, gives_scc = result_types[0] != "c", result_types[-1] == "c"
    result = operands.pop(0) if has_result else None
    wanted = source_types.replace("c", "").replace("+", "")
    if len(operands) != len(wanted) or instruction.modifiers:
        raise UnknownInstruction(f"{instruction}: operands or modifiers are not emulated")
    remaining = iter(operands)
    readers = [
        _reader(result if code == "+" else None if code == "c" else next(remaining), code) for code in source_types
    ]
    mask = (1 << WIDTH[result_types[0]]) - 1 if has_result else 0

    def step(wave: Wave) -> None:
        value = function(*[read(wave) for read in readers])
        if result is None:
            wave.scc = int(bool(value))
            return
        if gives_scc:
            value, scc = value
            wave.scc = int(bool(scc))
        wave.set_scalar(result.number, result.count, value & mask)

    return step


def _reader(operand, code: str) -> Callable[[Wave], int]:
    if code == "c":
        return lambda wave: wave.scc
    if code in "kK":  # a 16-bit constant of the instruction
        value = int(operand.value) & 0xFFFF
        value = signed(value, 16) if code == "k" else value
        return lambda wave: value
    width = WIDTH.get(code, 32)
    read = scalar_reader(operand, width)
    return (lambda wave: signed(read(wave), width)) if code in "iI" else read


def _bind_save_exec(function: Callable, instruction: Instruction) -> Callable[[Wave], None]:
    """The old EXEC goes to the destination, function(source, EXEC) becomes the new one."""
    result, source = [parse_operand(text) for text in instruction.operands]
    read = scalar_reader(source, 64)

    def step(wave: Wave) -> None:
        old, value = wave.scalar(EXEC, 2), read(wave)
        new = function(value, old) & LOW_64
        wave.set_scalar(result.number, 2, old)
        wave.set_scalar(EXEC, 2, new)
        wave.scc = int(new != 0)

    return step
