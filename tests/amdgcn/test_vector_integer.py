"""Integer and bit instructions against their definition on Python's integers, one lane at a time."""

from __future__ import annotations

import numpy as np
import pytest

from .chip import GFX950
from .registers import LANES, U64, lane_mask
from .snippets import execute, pair, random_words

M32, M64 = 2**32 - 1, 2**64 - 1


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def bfe(value: int, offset: int, width: int) -> int:
    return value >> (offset & 31) & (1 << (width & 31)) - 1


def perm(high: int, low: int, selector: int) -> int:
    data = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    result = []
    for pick in selector.to_bytes(4, "little"):
        if pick < 8:
            result.append(data[pick])
        elif pick < 12:
            result.append(0xFF if data[2 * (pick - 8) + 1] & 0x80 else 0)
        else:
            result.append(0 if pick == 12 else 0xFF)
    return int.from_bytes(bytes(result), "little")


TWO = {
    "v_add_u32_e32": lambda a, b: a + b,
    "v_sub_u32_e32": lambda a, b: a - b,
    "v_subrev_u32_e32": lambda a, b: b - a,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24_e32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_hi_u32_u24_e32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_i32_i24_e32": lambda a, b: signed(a, 24) * signed(b, 24),
    "v_min_u32_e32": min,
    "v_max_u32_e32": max,
    "v_min_i32_e32": lambda a, b: min(signed(a), signed(b)),
    "v_max_i32_e32": lambda a, b: max(signed(a), signed(b)),
    "v_and_b32_e32": lambda a, b: a & b,
    "v_or_b32_e32": lambda a, b: a | b,
    "v_xor_b32_e32": lambda a, b: a ^ b,
    "v_xnor_b32_e32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32_e32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32_e32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32_e32": lambda a, b: signed(b) >> (a & 31),
    "v_lshlrev_b16_e32": lambda a, b: b << (a & 15) & 0xFFFF,
    "v_lshrrev_b16_e32": lambda a, b: (b & 0xFFFF) >> (a & 15),
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
}
THREE = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b & M32) << (c & 31),
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfe_u32": bfe,
    "v_bfe_i32": lambda a, b, c: signed(bfe(signed(a), b, c), c & 31) if c & 31 else 0,
    "v_perm_b32": perm,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "v_med3_i32": lambda a, b, c: sorted((signed(a), signed(b), signed(c)))[1],
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
}


def operands(seed: int) -> list[np.ndarray]:
    """Random words; every fourth lane has small numbers instead, as shift amounts and widths are."""
    values = [random_words(seed + i) for i in range(3)]
    for value in values:
        value[::4] &= 0x1F
    values[2][1::4] &= 0x0F0F0F0F  # selectors of v_perm that pick signs and constants
    return values


@pytest.mark.parametrize("name", [*TWO, *THREE])
def test_32_bit_arithmetic(name):
    a, b, c = operands(len(name))
    definition = TWO.get(name) or THREE[name]
    sources = "v1, v2" if name in TWO else "v1, v2, v3"
    given = (a, b) if name in TWO else (a, b, c)
    wave = execute(f"{name} v0, {sources}", v1=a, v2=b, v3=c)
    expected = [definition(*(int(value[lane]) for value in given)) & M32 for lane in range(LANES)]
    assert wave.vectors[0].tolist() == expected


@pytest.mark.parametrize(
    ("line", "definition"),
    [
        ("v_lshl_add_u64 v[0:1], v[4:5], 3, v[6:7]", lambda a, b: (a << 3) + b),
        ("v_lshlrev_b64 v[0:1], 35, v[4:5]", lambda a, b: a << 35),
        ("v_lshrrev_b64 v[0:1], 3, v[4:5]", lambda a, b: a >> 3),
        ("v_ashrrev_i64 v[0:1], 3, v[4:5]", lambda a, b: signed(a, 64) >> 3),
        ("v_mad_u64_u32 v[0:1], s[8:9], v4, v6, v[6:7]", lambda a, b: (a & M32) * (b & M32) + b),
        ("v_mad_i64_i32 v[0:1], s[8:9], v4, v6, v[6:7]", lambda a, b: signed(a) * signed(b) + signed(b, 64)),
        ("v_mov_b64_e32 v[0:1], v[4:5]", lambda a, b: a),
    ],
)
def test_64_bit_arithmetic(line, definition):
    a, b = (random_words(1 + 2 * i).astype(U64) << U64(32) | random_words(2 + 2 * i).astype(U64) for i in range(2))
    wave = execute(line, v4=a, v6=b)
    assert pair(wave, 0).tolist() == [definition(int(x), int(y)) & M64 for x, y in zip(a, b, strict=True)]
    in_place = execute(line.replace("v[0:1]", "v[6:7]"), v4=a, v6=b)
    assert np.array_equal(pair(in_place, 6), pair(wave, 0))


def test_carries_make_a_64_bit_addition():
    """Low halves with a carry out, high halves with a carry in; the mask has zeros where lanes are off."""
    a, b = (random_words(i).astype(U64) << U64(32) | random_words(i + 9).astype(U64) for i in (1, 2))
    add = ("v_add_co_u32_e32 v0, vcc, v4, v6", "v_addc_co_u32_e32 v1, vcc, v5, v7, vcc")
    assert np.array_equal(pair(execute(*add, v4=a, v6=b), 0), a + b)
    subtract = ("v_sub_co_u32_e32 v0, vcc, v4, v6", "v_subb_co_u32_e32 v1, vcc, v5, v7, vcc")
    assert np.array_equal(pair(execute(*subtract, v4=a, v6=b), 0), a - b)
    equal = execute("v_subb_co_u32_e32 v0, vcc, v1, v2, vcc", v1=7, v2=7, vcc=0b101)
    assert (equal.scalar(106, 2), int(equal.vectors[0, 0]), int(equal.vectors[0, 1])) == (0b101, M32, 0)
    full = execute("v_addc_co_u32_e32 v0, vcc, v1, v2, vcc", v1=M32, v2=0, vcc=0b101)
    assert (full.scalar(106, 2), int(full.vectors[0, 0]), int(full.vectors[0, 1])) == (0b101, 0, M32)
    off = execute(add[0], v4=M32, v6=1, vcc=M64, lanes=np.arange(LANES) < 3)
    assert off.scalar(106, 2) == 0b111


def test_conditional_move_takes_the_second_where_the_bit_is_set():
    mask = 0x123456789ABCDEF0
    wave = execute("v_cndmask_b32_e64 v0, v1, -v2, s[4:5]", v1=1, v2=2, s4=mask)
    assert wave.vectors[0].tolist() == [0x80000002 if bit else 1 for bit in lane_mask(mask)]


def test_inactive_lanes_keep_their_value():
    active = np.arange(LANES) % 3 == 0
    wave = execute("v_add_u32_e32 v1, v1, v2", "v_mov_b64_e32 v[4:5], 0", v1=5, v2=1, v4=9, v5=9, lanes=active)
    assert wave.vectors[1].tolist() == [6 if on else 5 for on in active]
    assert wave.vectors[5].tolist() == [0 if on else 9 for on in active]


@pytest.mark.parametrize("relation", ["lt", "eq", "le", "gt", "ne", "ge"])
@pytest.mark.parametrize("kind", ["u32", "i32", "u64", "i64"])
def test_comparisons(relation, kind):
    bits = int(kind[1:])
    a, b = (random_words(1 + 2 * i).astype(U64) << U64(32) | random_words(2 + 2 * i).astype(U64) for i in range(2))
    b[::3] = a[::3]
    sources = "v4, v6" if bits == 32 else "v[4:5], v[6:7]"
    wave = execute(f"v_cmp_{relation}_{kind}_e64 s[0:1], {sources}", v4=a, v6=b)
    names = {"lt": "<", "eq": "==", "le": "<=", "gt": ">", "ne": "!=", "ge": ">="}
    convert = (lambda x: signed(x, bits)) if kind[0] == "i" else (lambda x: x & (1 << bits) - 1)
    expected = [eval(f"{convert(int(x))} {names[relation]} {convert(int(y))}") for x, y in zip(a, b, strict=True)]
    assert lane_mask(wave.scalar(0, 2)).tolist() == expected


def test_comparison_clears_inactive_lanes_and_cmpx_sets_exec():
    wave = execute("v_cmp_eq_u32_e32 vcc, 1, v1", v1=1, vcc=M64, lanes=np.arange(LANES) < 2)
    assert wave.scalar(106, 2) == 3
    wave = execute("v_cmpx_gt_u32_e32 vcc, 5, v1", v1=np.arange(LANES))
    assert wave.exec.tolist() == [lane < 5 for lane in range(LANES)]


def test_constants_and_literals():
    wave = execute(
        "v_mov_b32_e32 v0, -16", "v_mov_b32_e32 v1, 1.0", "v_mov_b32_e32 v2, 0x12345678", "v_mov_b32_e32 v3, 0.15915494"
    )
    assert [int(wave.vectors[i, 0]) for i in range(4)] == [M32 - 15, 0x3F800000, 0x12345678, 0x3E22F983]


def test_lanes_to_scalars_and_back():
    lanes = np.arange(LANES) >= 5
    wave = execute(
        "v_readfirstlane_b32 s0, v1", "v_readlane_b32 s1, v1, 3", "v_writelane_b32 v1, s0, 63",
        v1=np.arange(LANES) * 10, lanes=lanes,
    )  # fmt: skip
    assert (wave.scalar(0), wave.scalar(1), int(wave.vectors[1, 63])) == (50, 30, 50)


def test_lane_numbers_by_counting_bits():
    wave = execute("v_mbcnt_lo_u32_b32 v0, -1, 0", "v_mbcnt_hi_u32_b32 v0, -1, v0")
    assert wave.vectors[0].tolist() == list(range(LANES))


@pytest.mark.parametrize(("distance", "line"), [(16, "ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)"),
                                                (32, "ds_bpermute_b32 v0, v2, v1")])  # fmt: skip
def test_lanes_trade_places_through_the_crossbar(distance, line):
    lane = np.arange(LANES)
    wave = execute(line, v1=lane, v2=(lane ^ 32) * 4)
    assert wave.vectors[0].tolist() == (lane ^ distance).tolist()


def test_gfx950_swaps_rows_and_has_any_bit_operation():
    lane = np.arange(LANES)
    wave = execute("v_permlane32_swap_b32_e32 v1, v2", chip=GFX950, v1=lane, v2=lane + 100)
    assert wave.vectors[1].tolist() == [i if i < 32 else i - 32 + 100 for i in range(LANES)]
    assert wave.vectors[2].tolist() == [i + 32 if i < 32 else i + 100 for i in range(LANES)]
    a, b, c = (random_words(i) for i in range(3))
    wave = execute("v_bitop3_b32 v0, v1, v2, v3 bitop3:0x96", chip=GFX950, v1=a, v2=b, v3=c)
    assert np.array_equal(wave.vectors[0], a ^ b ^ c)


def test_accumulation_registers_are_apart():
    wave = execute("v_accvgpr_write_b32 a1, v2", "v_accvgpr_read_b32 v3, a1", v1=1, v2=7)
    assert (int(wave.vectors[3, 0]), int(wave.vectors[1, 0])) == (7, 1)


@pytest.mark.parametrize(
    ("line", "definition"),
    [
        ("v_and_b32_sdwa v0, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_0",
         lambda a, b, old: (a >> 16) & (b & 0xFF)),
        ("v_add_u32_sdwa v0, v1, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:WORD_0",
         lambda a, b, old: (a >> 24) + signed(b, 16)),
        ("v_mov_b32_sdwa v0, v1 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2",
         lambda a, b, old: old & 0xFFFF00FF | (a >> 16 & 0xFF) << 8),
        ("v_or_b32_sdwa v0, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1",
         lambda a, b, old: ((a & 0xFFFF) | (b >> 16)) << 16),
    ],
)  # fmt: skip
def test_parts_of_registers(line, definition):
    a, b, old = (random_words(i) for i in (3, 4, 5))
    wave = execute(line, v0=old, v1=a, v2=b)
    expected = [definition(int(x), int(y), int(z)) & M32 for x, y, z in zip(a, b, old, strict=True)]
    assert wave.vectors[0].tolist() == expected
