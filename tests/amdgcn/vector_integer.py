"""Vector instructions on integers and bits: ``name: (signature, function of the sources' 64 lanes)``.

A signature is "results:sources" in instruction order: u, i 32-bit unsigned and signed; U, I the same in 64 bits; f
float32 (denormals by MODE); b 32 bits that may be negated as a float; m a lane mask; + the destination's old value.
numpy wraps on overflow, as the hardware does.
"""

from __future__ import annotations

import numpy as np

from .registers import LANES, U32, U64

I32, I64 = np.int32, np.int64
LANE = np.arange(LANES)
BITS = np.arange(32, dtype=U32)


def wide(values: np.ndarray) -> np.ndarray:
    """To 64 bits, keeping the sign where there is one."""
    return values.astype(I64 if values.dtype == I32 else U64)


def add_carry(a, b, carry):
    total = wide(a) + wide(b) + carry
    return total.astype(U32), total > U64(0xFFFFFFFF)


def subtract_borrow(a, b, borrow):
    subtrahend = wide(b) + borrow
    return (wide(a) - subtrahend).astype(U32), wide(a) < subtrahend


def multiply_add_64(a, b, c):
    product = wide(a) * wide(b)
    total = product + c
    carry = total < product if total.dtype == U64 else (c < 0) != (total < product)
    return total, carry


def extract(values, offset, width):
    """width bits from offset; the sign is extended where there is one."""
    offset, width = offset & U32(31), width & U32(31)
    field = (values >> offset.astype(values.dtype)).view(U32) & ((U32(1) << width) - U32(1))
    if values.dtype == U32:
        return field
    sign = np.where(width == 0, U32(0), U32(1) << width - U32(1))
    return ((field ^ sign) - sign).view(I32)


def permute_bytes(high, low, selector):
    """Each byte of the selector picks a byte of {high, low}, a sign, 0x00 or 0xff."""
    both = wide(high) << U64(32) | wide(low)
    result = np.zeros(LANES, U32)
    for byte in range(4):
        pick = selector >> U32(8 * byte) & U32(0xFF)
        chosen = (both >> (wide(pick & U32(7)) * U64(8)) & U64(0xFF)).astype(U32)
        sign_of = both >> (wide(np.minimum(pick - U32(8), U32(3))) * U64(16) + U64(15)) & U64(1)
        special = np.where(pick < 12, sign_of.astype(U32) * U32(0xFF), np.where(pick == 12, U32(0), U32(0xFF)))
        result |= np.where(pick < 8, chosen, special) << U32(8 * byte)
    return result


def count_below(mask, before, first_lane):
    """How many bits of the mask belong to lower lanes, added to before."""
    below = np.clip(LANE - first_lane, 0, 32)
    ones = [(int(bits) & (1 << int(count)) - 1).bit_count() for bits, count in zip(mask, below, strict=True)]
    return np.array(ones, U32) + before


def bit_operation(a, b, c, table):
    """Any function of three bits: bit (4a + 2b + c) of the table."""
    result = np.zeros(LANES, U32)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def first_one_from_top(values):
    found = np.array([32 - int(value).bit_length() for value in values], U32)
    return np.where(values == 0, U32(0xFFFFFFFF), found)


def low_24(values):
    if values.dtype == I32:
        return wide(values << I32(8) >> I32(8))
    return wide(values & U32(0xFFFFFF))


def shift(amount, bits=32):
    """A shift amount: only its low bits count."""
    return amount & amount.dtype.type(bits - 1)


INTEGER = {
    "v_mov_b32": ("b:b", lambda a: a),
    "v_mov_b64": ("U:U", lambda a: a),
    "v_accvgpr_read_b32": ("u:u", lambda a: a),
    "v_accvgpr_write_b32": ("u:u", lambda a: a),
    "v_cndmask_b32": ("b:bbm", lambda a, b, mask: np.where(mask, b, a)),
    "v_not_b32": ("u:u", lambda a: ~a),
    "v_bfrev_b32": ("u:u", lambda a: ((a[:, None] >> BITS & U32(1)) << (U32(31) - BITS)).sum(1, dtype=U32)),
    "v_ffbh_u32": ("u:u", first_one_from_top),
    "v_add_u32": ("u:uu", lambda a, b: a + b),
    "v_sub_u32": ("u:uu", lambda a, b: a - b),
    "v_subrev_u32": ("u:uu", lambda a, b: b - a),
    "v_add_co_u32": ("um:uu", lambda a, b: add_carry(a, b, U64(0))),
    "v_addc_co_u32": ("um:uum", lambda a, b, carry: add_carry(a, b, carry.astype(U64))),
    "v_sub_co_u32": ("um:uu", lambda a, b: subtract_borrow(a, b, U64(0))),
    "v_subrev_co_u32": ("um:uu", lambda a, b: subtract_borrow(b, a, U64(0))),
    "v_subb_co_u32": ("um:uum", lambda a, b, borrow: subtract_borrow(a, b, borrow.astype(U64))),
    "v_subbrev_co_u32": ("um:uum", lambda a, b, borrow: subtract_borrow(b, a, borrow.astype(U64))),
    "v_add3_u32": ("u:uuu", lambda a, b, c: a + b + c),
    "v_lshl_add_u32": ("u:uuu", lambda a, b, c: (a << shift(b)) + c),
    "v_add_lshl_u32": ("u:uuu", lambda a, b, c: (a + b) << shift(c)),
    "v_lshl_add_u64": ("U:UuU", lambda a, b, c: (a << wide(b & U32(7))) + c),
    "v_xad_u32": ("u:uuu", lambda a, b, c: (a ^ b) + c),
    "v_mul_lo_u32": ("u:uu", lambda a, b: a * b),
    "v_mul_hi_u32": ("u:uu", lambda a, b: (wide(a) * wide(b) >> U64(32)).astype(U32)),
    "v_mul_hi_i32": ("i:ii", lambda a, b: (wide(a) * wide(b) >> I64(32)).astype(I32)),
    "v_mul_u32_u24": ("u:uu", lambda a, b: (low_24(a) * low_24(b)).astype(U32)),
    "v_mul_i32_i24": ("i:ii", lambda a, b: (low_24(a) * low_24(b)).astype(I32)),
    "v_mul_hi_u32_u24": ("u:uu", lambda a, b: (low_24(a) * low_24(b) >> U64(32)).astype(U32)),
    "v_mad_u32_u24": ("u:uuu", lambda a, b, c: (low_24(a) * low_24(b)).astype(U32) + c),
    "v_mad_i32_i24": ("i:iii", lambda a, b, c: (low_24(a) * low_24(b)).astype(I32) + c),
    "v_mad_u64_u32": ("Um:uuU", multiply_add_64),
    "v_mad_i64_i32": ("Im:iiI", multiply_add_64),
    "v_min_u32": ("u:uu", np.minimum),
    "v_max_u32": ("u:uu", np.maximum),
    "v_min_i32": ("i:ii", np.minimum),
    "v_max_i32": ("i:ii", np.maximum),
    "v_med3_i32": ("i:iii", lambda a, b, c: np.sort(np.stack((a, b, c)), axis=0)[1]),
    "v_med3_u32": ("u:uuu", lambda a, b, c: np.sort(np.stack((a, b, c)), axis=0)[1]),
    "v_and_b32": ("u:uu", lambda a, b: a & b),
    "v_or_b32": ("u:uu", lambda a, b: a | b),
    "v_xor_b32": ("u:uu", lambda a, b: a ^ b),
    "v_xnor_b32": ("u:uu", lambda a, b: ~(a ^ b)),
    "v_and_or_b32": ("u:uuu", lambda a, b, c: a & b | c),
    "v_or3_b32": ("u:uuu", lambda a, b, c: a | b | c),
    "v_lshl_or_b32": ("u:uuu", lambda a, b, c: a << shift(b) | c),
    "v_bfi_b32": ("u:uuu", lambda a, b, c: a & b | ~a & c),
    "v_bfe_u32": ("u:uuu", extract),
    "v_bfe_i32": ("i:iuu", extract),
    "v_bfm_b32": ("u:uu", lambda a, b: (U32(1) << shift(a)) - U32(1) << shift(b)),
    "v_perm_b32": ("u:uuu", permute_bytes),
    "v_alignbit_b32": ("u:uuu", lambda a, b, c: (wide(a) << U64(32) | wide(b)) >> wide(shift(c))),
    "v_alignbyte_b32": ("u:uuu", lambda a, b, c: (wide(a) << U64(32) | wide(b)) >> wide(shift(c, 4)) * U64(8)),
    "v_lshlrev_b32": ("u:uu", lambda a, b: b << shift(a)),
    "v_lshrrev_b32": ("u:uu", lambda a, b: b >> shift(a)),
    "v_ashrrev_i32": ("i:ii", lambda a, b: b >> shift(a)),
    "v_lshlrev_b64": ("U:uU", lambda a, b: b << wide(shift(a, 64))),
    "v_lshrrev_b64": ("U:uU", lambda a, b: b >> wide(shift(a, 64))),
    "v_ashrrev_i64": ("I:uI", lambda a, b: b >> shift(a, 64).astype(I64)),
    "v_lshlrev_b16": ("u:uu", lambda a, b: b << shift(a, 16) & U32(0xFFFF)),
    "v_lshrrev_b16": ("u:uu", lambda a, b: (b & U32(0xFFFF)) >> shift(a, 16)),
    "v_mbcnt_lo_u32_b32": ("u:uu", lambda a, b: count_below(a, b, 0)),
    "v_mbcnt_hi_u32_b32": ("u:uu", lambda a, b: count_below(a, b, 32)),
}
