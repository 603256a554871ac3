"""Scalar instructions against Python's integers, branches, waits, and the errors for what is not emulated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from .chip import GFX942, GFX950
from .counters import RoundTrips, kind_of
from .decode import parse_listing, parse_text
from .launch import bind
from .registers import EXEC, LANES, UnknownInstruction
from .snippets import execute

M32, M64 = 2**32 - 1, 2**64 - 1
WORDS = [0, 1, 5, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678]


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def overflows(value: int) -> bool:
    return not -(2**31) <= value < 2**31


# Result and SCC (None: it stays).
TWO = {
    "s_add_u32": lambda a, b: (a + b, a + b > M32),
    "s_sub_u32": lambda a, b: (a - b, a < b),
    "s_add_i32": lambda a, b: (a + b, overflows(signed(a) + signed(b))),
    "s_sub_i32": lambda a, b: (a - b, overflows(signed(a) - signed(b))),
    "s_addc_u32": lambda a, b: (a + b + 1, a + b + 1 > M32),
    "s_subb_u32": lambda a, b: (a - b - 1, a < b + 1),
    "s_mul_i32": lambda a, b: (a * b, None),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_and_b32": lambda a, b: (a & b, a & b != 0),
    "s_or_b32": lambda a, b: (a | b, a | b != 0),
    "s_xor_b32": lambda a, b: (a ^ b, a ^ b != 0),
    "s_andn2_b32": lambda a, b: (a & ~b, a & ~b & M32 != 0),
    "s_nor_b32": lambda a, b: (~(a | b), ~(a | b) & M32 != 0),
    "s_lshl_b32": lambda a, b: (a << (b & 31), a << (b & 31) & M32 != 0),
    "s_lshr_b32": lambda a, b: (a >> (b & 31), a >> (b & 31) != 0),
    "s_ashr_i32": lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_u32": lambda a, b: (max(a, b), a > b),
    "s_lshl3_add_u32": lambda a, b: ((a << 3) + b, (a << 3) + b > M32),
    "s_cselect_b32": lambda a, b: (a, None),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF | b << 16, None),
}


@pytest.mark.parametrize("name", TWO)
def test_32_bit_arithmetic(name):
    """SCC is 1 before, so that what leaves it alone shows, and what takes it as a carry."""
    for a, b in itertools.product(WORDS, WORDS):
        wave = execute("s_cmp_eq_u32 0, 0", f"{name} s0, s1, s2", s1=a, s2=b)
        result, scc = TWO[name](a, b)
        assert (wave.scalar(0), wave.scc) == (result & M32, 1 if scc is None else int(scc)), (hex(a), hex(b))


@pytest.mark.parametrize(
    ("line", "result", "scc"),
    [
        ("s_lshl_b64 s[0:1], s[2:3], 4", 0x123456789ABCDEF0 << 4 & M64, 1),
        ("s_lshr_b64 s[0:1], s[2:3], 36", 0x123456789ABCDEF0 >> 36, 1),
        ("s_ashr_i64 s[0:1], s[4:5], 4", 0xF800000000000000, 1),
        ("s_and_b64 s[0:1], s[2:3], s[4:5]", 0, 0),
        ("s_nor_b64 s[0:1], s[2:3], s[4:5]", ~(0x123456789ABCDEF0 | 1 << 63) & M64, 1),
        ("s_cselect_b64 s[0:1], -1, 0", M64, 1),
        ("s_mov_b64 s[0:1], s[2:3]", 0x123456789ABCDEF0, 1),
        ("s_bfe_u32 s0, s2, 0x80004", 0xEF, 1),
        ("s_bfe_i32 s0, s2, 0x80004", 0xFFFFFFEF, 1),
        ("s_movk_i32 s0, 0xff80", 0xFFFFFF80, 1),
        ("s_addk_i32 s2, 0x8000", None, 0),
        ("s_sext_i32_i16 s0, s2", 0xFFFFDEF0, 1),
        ("s_bcnt1_i32_b64 s0, s[2:3]", 32, 1),
        ("s_ff1_i32_b32 s0, s2", 4, 1),
        ("s_flbit_i32_b32 s0, s3", 3, 1),
        ("s_brev_b32 s0, 1", 0x80000000, 1),
        ("s_bitcmp0_b32 s2, 4", None, 0),
        ("s_bitcmp1_b32 s2, 4", None, 1),
        ("s_cmp_lt_i32 s5, 0", None, 1),
        ("s_cmp_lt_u32 s5, 0", None, 0),
        ("s_cmpk_gt_i32 s5, 0xffff", None, 0),
        ("s_cmpk_gt_u32 s5, 0xffff", None, 1),
        ("s_cmp_lg_u64 s[2:3], s[4:5]", None, 1),
    ],
)
def test_other_scalar_instructions(line, result, scc):
    wave = execute("s_cmp_eq_u32 0, 0", line, s2=0x123456789ABCDEF0, s4=1 << 63)
    assert wave.scc == scc
    if result is not None:
        assert wave.scalar(0, 2 if "s[0:1]" in line else 1) == result


def test_exec_is_saved_and_masked():
    mask = 0xFF00FF00FF00FF00
    wave = execute("s_and_saveexec_b64 s[0:1], vcc", vcc=mask)
    assert (wave.scalar(0, 2), wave.scalar(EXEC, 2), wave.scc) == (M64, mask, 1)
    assert wave.exec.tolist() == [bool(mask >> lane & 1) for lane in range(LANES)]
    wave = execute("s_mov_b64 exec, s[4:5]", "v_mov_b32_e32 v0, 1", v0=0, s4=mask)
    assert wave.vectors[0].tolist() == [mask >> lane & 1 for lane in range(LANES)]
    assert execute("s_mov_b32 exec_hi, 1").exec.tolist() == [lane <= 32 for lane in range(LANES)]
    wave = execute("s_mov_b32 exec_lo, 0", "s_xor_b64 exec, exec, s[4:5]", s4=mask)
    assert wave.scalar(EXEC, 2) == (M64 ^ (M64 & M32)) ^ mask


@pytest.mark.parametrize(
    ("name", "before", "taken"),
    [("s_branch", {}, True), ("s_cbranch_scc0", {}, True), ("s_cbranch_scc1", {}, False),
     ("s_cbranch_vccz", {"vcc": 0}, True), ("s_cbranch_vccnz", {"vcc": 0}, False),
     ("s_cbranch_execz", {}, False), ("s_cbranch_execnz", {}, True)],
)  # fmt: skip
def test_branches(name, before, taken):
    wave = execute(f"{name} 65534", **before)
    assert wave.pc == (0 + 4 - 8 if taken else 0)


def test_round_trips_are_chains_of_loads():
    """Two loads in flight together are one; a load issued after waiting for another is a second."""
    trips = RoundTrips()
    trips.issue("vmcnt")
    trips.issue("vmcnt")
    trips.issue("lgkmcnt")
    trips.wait("vmcnt", 1)
    assert trips.depth == 1
    trips.wait("vmcnt", 0)
    trips.wait("lgkmcnt", 0)
    assert trips.depth == 1
    trips.issue("vmcnt")
    assert trips.depth == 1
    trips.wait("vmcnt", 0)
    assert trips.depth == 2


def test_kinds():
    names = {"v_add_f32": "vector", "s_add_u32": "scalar", "s_load_dwordx2": "scalar_load", "s_waitcnt": "wait",
             "global_load_dword": "vector_load", "buffer_store_short": "vector_store", "ds_read_b32": "lds",
             "s_cbranch_scc0": "branch", "s_branch": "branch", "s_nop": "nop", "s_endpgm": "end"}  # fmt: skip
    assert {name: kind_of(name) for name in names} == names


@pytest.mark.parametrize(
    "line",
    [
        "v_exp_f32_e32 v0, v1", "s_sendmsg sendmsg(MSG_INTERRUPT)", "scratch_store_dword off, v0, s32",
        "global_atomic_add v[0:1], v2, off", "v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]",
        "v_cvt_pk_bf16_f32 v0, v1, v2", "v_add_f32_e64 v0, v1, v2 clamp", "v_mul_f32_e64 v0, v1, v2 mul:2",
        "v_add_u32_e64 v0, -v1, v2", "buffer_load_dword v1, v0, s[4:7], 0 idxen", "s_mov_b64 s[0:1], 0x89abcdef",
        "global_load_lds_dword v[0:1], off", "v_add_u32_e32 v0, src_lds_direct, v1",
    ],
)  # fmt: skip
def test_what_is_not_emulated_is_named(line):
    with pytest.raises(UnknownInstruction) as unknown:
        bind(parse_text(line), GFX942)
    name = line.split()[0]
    assert name.removesuffix("_e32").removesuffix("_e64") in str(unknown.value) or "operand" in str(unknown.value)


def test_gfx950_has_more():
    assert bind(parse_text("v_cvt_pk_bf16_f32 v0, v1, v2"), GFX950)


def test_lines_of_a_listing():
    listing = """
0000000000001900 <kernel>:
	v_add_f32_dpp v9, -v9, |v9| row_shl:4 row_mask:0xf bank_mask:0xf bound_ctrl:1// 000000002CEC: 021212FA FF190409
	s_waitcnt vmcnt(2) lgkmcnt(0)                              // 000000002CF4: BF8C0072
	global_load_dwordx4 v[4:7], v12, s[6:7] offset:-16 nt      // 000000002CF8: DC5E8000 0406000C
	s_endpgm                                                   // 000000002D00: BF810000
"""
    dpp, wait, load, end = parse_listing(listing)
    assert (dpp.name, dpp.encoding, dpp.operands) == ("v_add_f32", "dpp", ("v9", "-v9", "|v9|"))
    assert dpp.modifiers == {"row_shl": "4", "row_mask": "0xf", "bank_mask": "0xf", "bound_ctrl": "1"}
    assert (dpp.address, dpp.size, wait.address) == (0x2CEC, 8, 0x2CF4)
    assert wait.operands == ("vmcnt(2)", "lgkmcnt(0)")
    assert (load.operands, load.modifiers) == (("v[4:7]", "v12", "s[6:7]"), {"offset": "-16", "nt": ""})
    assert (end.name, end.operands) == ("s_endpgm", ())


def test_garbage_before_the_first_write():
    """A register that nobody wrote holds a signalling NaN, not a zero that hides the mistake."""
    wave = execute("s_nop 0")
    assert np.isnan(wave.vectors[:512].view(np.float32)).all() and wave.scalar(7) != 0
