"""Float instructions against IEEE arithmetic on exact fractions, and the division and root sequences as a whole."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from .chip import GFX942, GFX950
from .conversions import fp8_bits, fp8_values
from .registers import LANES, U32, UnknownInstruction, lane_mask
from .snippets import EDGES, execute, floats, random_floats, random_words, same_floats

F32 = np.float32


def nearest(value: Fraction) -> np.float32:
    """An exact value rounded once to float32, to nearest even."""
    if value == 0:
        return F32(0)
    size = abs(value)
    exponent = max(math.floor(math.log2(size.numerator) - math.log2(size.denominator)), -126)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while size < Fraction(2) ** exponent and exponent > -126:
        exponent -= 1
    step = Fraction(2) ** (exponent - 23)
    result = round(size / step) * step  # Python rounds halves to even
    as_float = F32(np.inf) if result >= Fraction(2) ** 128 else F32(float(result))
    return -as_float if value < 0 else as_float


def fused(a: float, b: float, c: float) -> np.float32:
    if not all(map(math.isfinite, (a, b, c))) or (a * b == 0 and c == 0):
        with np.errstate(all="ignore"):
            return F32(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest(exact) if exact else F32(0)


def smaller(a, b):
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return min((a, math.copysign(1, a)), (b, math.copysign(1, b)))[0]


def larger(a, b):
    return -smaller(-a, -b)


def per_lane(definition, *sources: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array([definition(*map(F32, lane)) for lane in zip(*sources, strict=True)], F32)


@pytest.mark.parametrize(
    ("line", "definition"),
    [
        ("v_add_f32_e32 v0, v1, v2", lambda a, b, c: a + b),
        ("v_sub_f32_e32 v0, v1, v2", lambda a, b, c: a - b),
        ("v_subrev_f32_e32 v0, v1, v2", lambda a, b, c: b - a),
        ("v_mul_f32_e64 v0, -v1, |v2|", lambda a, b, c: -a * abs(b)),
        ("v_max_f32_e32 v0, v1, v2", lambda a, b, c: larger(a, b)),
        ("v_min_f32_e32 v0, v1, v2", lambda a, b, c: smaller(a, b)),
        ("v_max3_f32 v0, v1, v2, v3", lambda a, b, c: larger(larger(a, b), c)),
        ("v_min3_f32 v0, v1, v2, v3", lambda a, b, c: smaller(smaller(a, b), c)),
        ("v_fma_f32 v0, v1, v2, -v3", lambda a, b, c: fused(float(a), float(b), float(-c))),
        ("v_fma_f32 v0, v1, v2, v3", lambda a, b, c: fused(float(a), float(b), float(c))),
        ("v_fmac_f32_e32 v3, v1, v2", lambda a, b, c: fused(float(a), float(b), float(c))),
        ("v_fmamk_f32 v0, v1, 0x3fc00000, v2", lambda a, b, c: fused(float(a), 1.5, float(b))),
        ("v_fmaak_f32 v0, v1, v2, 0x3fc00000", lambda a, b, c: fused(float(a), float(b), 1.5)),
        ("v_ldexp_f32 v0, v1, 3", lambda a, b, c: a * F32(8)),
        ("v_rndne_f32_e32 v0, v1", lambda a, b, c: np.rint(a)),
    ],
)
def test_arithmetic(line, definition):
    for seed in range(3):
        a, b, c = (random_floats(seed + 10 * i) for i in range(3))
        wave = execute(line, v1=a, v2=b, v3=c)
        assert same_floats(floats(wave, 3 if "fmac" in line else 0), per_lane(definition, a, b, c))


def test_fma_rounds_once():
    """Sums that a float64 rounds to a tie of float32, which the exact value is not."""
    a, b, c = F32(1 + 2**-23), F32(1 + 2**-23), F32(2**-60)
    for addend in (c, -c, F32(2.0**-24), F32(-(2.0**-24) * (1 + 2**-22))):
        wave = execute("v_fma_f32 v0, v1, v2, v3", v1=a, v2=b, v3=addend)
        assert floats(wave, 0)[0] == fused(float(a), float(b), float(addend))


def test_median_clamps_and_a_nan_gives_the_smallest():
    values = random_floats(4)
    wave = execute("v_med3_f32 v0, v1, s0, v2", v1=values, s0=0x43E00000, v2=-448.0)
    expected = np.where(np.isnan(values), F32(-448), np.clip(values, -448, 448))
    assert same_floats(floats(wave, 0), expected)


@pytest.mark.parametrize(
    ("given", "expected"), [((2, 3, 1), 2), ((np.nan, 3, 1), 1), ((3, np.nan, 1), 1), ((np.nan, np.nan, 5), 5)]
)
def test_median_of_three(given, expected):
    a, b, c = map(float, given)
    assert floats(execute("v_med3_f32 v0, v1, v2, v3", v1=a, v2=b, v3=c), 0)[0] == expected


@pytest.mark.parametrize(
    ("mode", "source", "result"), [(3, True, True), (2, False, True), (1, True, False), (0, False, False)]
)
def test_denormals_by_mode(mode, source, result):
    """The mode says whether denormals survive as sources and as results; a move and a selection keep every bit."""
    tiny = F32(2.0**-130)
    wave = execute(
        "v_mul_f32_e32 v1, 2.0, v0", "v_mul_f32_e32 v3, 0.5, v2", "v_mov_b32_e32 v4, v0",
        "v_pk_mul_f32 v[6:7], v[0:1], v[8:9]", "v_cndmask_b32_e64 v5, v0, v0, vcc", "v_cmp_lt_f32_e64 s[0:1], 0, v0",
        denormals_32=mode, v0=tiny, v2=F32(2.0**-126), v8=F32(2.0**20), v9=F32(1),
    )  # fmt: skip
    assert floats(wave, 1)[0] == (2 * tiny if source and result else 0)
    assert floats(wave, 3)[0] == (F32(2.0**-127) if result else 0)
    assert floats(wave, 4)[0] == floats(wave, 5)[0] == tiny
    assert floats(wave, 6)[0] == (tiny * F32(2.0**20) if source else 0)
    assert bool(wave.scalar(0, 2)) == source


def test_mode_can_be_switched():
    lines = ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0", "v_mul_f32_e32 v1, 1.0, v0",
             "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3", "v_mul_f32_e32 v2, 1.0, v0")  # fmt: skip
    wave = execute(*lines, v0=F32(2.0**-130))
    assert (floats(wave, 1)[0], floats(wave, 2)[0]) == (0, F32(2.0**-130))


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_approximations_are_off_by_what_the_chip_says(ulps):
    chip = dataclasses.replace(GFX942, approximation_ulps=ulps)
    wave = execute(
        "v_rcp_f32_e32 v1, v0", "v_sqrt_f32_e32 v2, v0", "v_rsq_f32_e32 v3, v0", chip=chip, v0=np.arange(1, 65.0)
    )
    for number, exact in ((1, 1 / np.arange(1, 65.0)), (2, np.arange(1, 65.0) ** 0.5), (3, np.arange(1, 65.0) ** -0.5)):
        assert np.array_equal(wave.vectors[number], exact.astype(F32).view(U32) + U32(ulps % 2**32))
    specials = execute("v_rcp_f32_e32 v1, v0", chip=chip, v0=np.array([0.0, -0.0, np.inf, 2.0**-130] * 16))
    assert floats(specials, 1)[:4].tolist() == [np.inf, -np.inf, 0, np.inf]


def test_approximations_may_be_off_by_what_the_value_decides():
    chip = dataclasses.replace(GFX942, approximation_seed=7)
    wave = execute("v_sqrt_f32_e32 v1, v0", "v_sqrt_f32_e32 v2, v0", chip=chip, v0=np.arange(1, 65.0))
    off = wave.vectors[1].astype(np.int64) - (np.arange(1, 65.0) ** 0.5).astype(F32).view(U32)
    assert set(off.tolist()) == {-1, 0, 1} and np.array_equal(wave.vectors[1], wave.vectors[2])


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_division_sequence_is_exact(ulps):
    """What a compiler makes of a / b: correctly rounded for numbers of all sizes, whatever v_rcp is off by.

    But for Markstein's one exception: a denominator whose fraction is all ones needs the exact reciprocal.
    """
    division = (
        "v_div_scale_f32 v2, s[0:1], v1, v1, v0", "v_div_scale_f32 v3, vcc, v0, v1, v0", "v_rcp_f32_e32 v4, v2",
        "v_fma_f32 v5, -v2, v4, 1.0", "v_fmac_f32_e32 v4, v5, v4", "v_mul_f32_e32 v5, v3, v4",
        "v_fma_f32 v6, -v2, v5, v3", "v_fmac_f32_e32 v5, v6, v4", "v_fma_f32 v2, -v2, v5, v3",
        "v_div_fmas_f32 v2, v2, v4, v5", "v_div_fixup_f32 v7, v2, v1, v0",
    )  # fmt: skip
    chip = dataclasses.replace(GFX942, approximation_ulps=ulps)
    for seed in range(20):
        a, b = random_floats(seed), random_floats(seed + 100)
        if ulps:
            b[b.view(U32) & U32(0x7FFFFF) == 0x7FFFFF] = 3
        wave = execute(*division, chip=chip, v0=a, v1=b)
        with np.errstate(all="ignore"):
            assert same_floats(floats(wave, 7), a / b)


def test_division_helper_by_its_rules():
    """One case of each rule of v_div_scale: numerator, denominator; the scaled denominator, the flag."""
    cases = [
        (1.0, 3.0, 3.0, False),
        (2.0**100, 1.0, 2.0**64, True),
        (2.0**-100, 2.0**-140, 2.0**-76, False),
        (2.0**-20, 2.0**110, 2.0**110, True),  # the quotient alone is denormal: only the numerator is scaled
        (2.0**-10, 2.0**127, 2.0**63, True),  # the inverse as well
        (1.0, 2.0**127, 2.0**63, True),
        (8.0, 2.0**127, 2.0**63, False),
        (2.0**-120, 2.0**-110, 2.0**-46, False),
    ]
    for numerator, denominator, scaled, flag in cases:
        wave = execute("v_div_scale_f32 v2, vcc, v1, v1, v0", v0=numerator, v1=denominator)
        assert (floats(wave, 2)[0], bool(wave.scalar(106, 2))) == (F32(scaled), flag), (numerator, denominator)


@pytest.mark.parametrize(
    ("relation", "definition"),
    [
        ("lt", lambda a, b: a < b), ("gt", lambda a, b: a > b), ("lg", lambda a, b: a < b or a > b),
        ("o", lambda a, b: a == a and b == b), ("u", lambda a, b: a != a or b != b),
        ("nge", lambda a, b: not a >= b), ("ngt", lambda a, b: not a > b), ("neq", lambda a, b: not a == b),
        ("nle", lambda a, b: not a <= b), ("nlt", lambda a, b: not a < b), ("nlg", lambda a, b: not (a < b or a > b)),
    ],
)  # fmt: skip
def test_comparisons_with_nan(relation, definition):
    a, b = random_floats(1), random_floats(2)
    b[::5] = a[::5]
    wave = execute(f"v_cmp_{relation}_f32_e64 s[0:1], v1, -v2", v1=a, v2=-b)
    assert lane_mask(wave.scalar(0, 2)).tolist() == [bool(definition(x, y)) for x, y in zip(a, b, strict=True)]


def test_classes():
    bits = [0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0, 1, 0x3F800000, 0x7F800000]
    values = np.array((bits * 7)[:LANES], U32)
    for number in range(10):
        wave = execute(f"v_cmp_class_f32_e64 s[0:1], v1, {1 << number:#x}" if 1 << number <= 64 else
                       "v_cmp_class_f32_e64 s[0:1], v1, s2", v1=values, s2=1 << number)  # fmt: skip
        assert lane_mask(wave.scalar(0, 2))[:10].tolist() == [index == number for index in range(10)]


def test_packed_halves_and_signs():
    a, b, c = (random_floats(i) for i in range(3))
    low, high = c, a
    wave = execute(
        "v_pk_mul_f32 v[0:1], v[4:5], v[6:7] op_sel:[0,1] op_sel_hi:[1,0] neg_lo:[1,0] neg_hi:[0,1]",
        "v_pk_add_f32 v[2:3], v[4:5], 1.0 op_sel_hi:[1,0]",
        "v_pk_fma_f32 v[4:5], v[4:5], v[6:7], v[4:5]",
        v4=a, v5=b, v6=low, v7=high,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        assert same_floats(floats(wave, 0), -a * high) and same_floats(floats(wave, 1), b * -low)
        assert same_floats(floats(wave, 2), a + F32(1)) and same_floats(floats(wave, 3), b + F32(1))
    assert same_floats(floats(wave, 4), per_lane(lambda x, y, z: fused(*map(float, (x, y, z))), a, low, a))
    assert same_floats(floats(wave, 5), per_lane(lambda x, y, z: fused(*map(float, (x, y, z))), b, high, b))


def test_packed_in_place_reads_both_halves_first():
    """The high result takes the low half, which the low result has just replaced."""
    a, b = random_floats(1), random_floats(2)
    wave = execute("v_pk_add_f32 v[4:5], v[4:5], v[4:5] op_sel_hi:[0,0]", v4=a, v5=b)
    with np.errstate(all="ignore"):
        assert same_floats(floats(wave, 4), a + a) and same_floats(floats(wave, 5), a + a)


def test_packed_move_and_a_constants_high_half():
    a, b = random_words(1), random_words(2)
    wave = execute("v_pk_mov_b32 v[0:1], v[0:1], v[0:1] op_sel:[1,0]", v0=a, v1=b)
    assert np.array_equal(wave.vectors[0], b) and np.array_equal(wave.vectors[1], a)
    with pytest.raises(UnknownInstruction, match="high half of the constant"):
        execute("v_pk_add_f32 v[0:1], v[2:3], 1.0")


def test_integers_and_floats():
    a, words = random_floats(3), random_words(3)
    wave = execute(
        "v_cvt_u32_f32_e32 v1, v0", "v_cvt_i32_f32_e32 v2, v0", "v_cvt_f32_u32_e32 v4, v3", "v_cvt_f32_i32_e32 v5, v3",
        "v_cvt_f32_ubyte2_e32 v6, v3", v0=a, v3=words,
    )  # fmt: skip

    def clamped(value: float, low: int, high: int) -> int:
        if math.isnan(value):
            return 0
        return high if value >= high else low if value <= low else int(value)

    assert wave.vectors[1].tolist() == [clamped(float(x), 0, 2**32 - 1) for x in a]
    assert wave.vectors[2].view(np.int32).tolist() == [clamped(float(x), -(2**31), 2**31 - 1) for x in a]
    assert floats(wave, 4).tolist() == [float(nearest(Fraction(int(x)))) for x in words]
    assert floats(wave, 5).tolist() == [float(nearest(Fraction(int(x)))) for x in words.view(np.int32)]
    assert floats(wave, 6).tolist() == [float(int(x) >> 16 & 255) for x in words]


def bf16_definition(value: np.float32) -> int:
    """Halfway cases by exact arithmetic."""
    bits = int(value.view(U32))
    if math.isnan(value):
        return bits >> 16 | 0x40
    if math.isinf(value):
        return bits >> 16
    below, above = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    low, middle = Fraction(bits & 0xFFFF), Fraction(0x8000)
    return (above if low > middle or (low == middle and below >> 16 & 1) else below) >> 16 & 0xFFFF


def test_bf16_pairs_on_gfx950_only():
    a, b = random_floats(5), random_floats(6)
    a[1::2] = (random_words(7)[1::2] & U32(0xFFFF0000) | U32(0x8000)).view(F32)  # ties
    wave = execute("v_cvt_pk_bf16_f32 v0, v1, v2", chip=GFX950, v1=a, v2=b)
    expected = [bf16_definition(x) | bf16_definition(y) << 16 for x, y in zip(a, b, strict=True)]
    assert wave.vectors[0].tolist() == expected


def fp8_table(bias: int, largest_code: int) -> list[Fraction]:
    """The values of the codes 0..largest, by the format's definition."""
    table = []
    for code in range(largest_code + 1):
        exponent, fraction = code >> 3, code & 7
        significand = Fraction(fraction, 8) + (exponent > 0)
        table.append(significand * Fraction(2) ** (max(exponent, 1) - bias))
    return table


@pytest.mark.parametrize("chip", [GFX942, GFX950], ids=lambda chip: chip.name)
def test_fp8_by_the_formats_definition(chip):
    """Nearest code, ties to the even one, overflow to NaN; every code, every midpoint, and what lies beside it."""
    bias, largest_code = (8, 0x7F) if chip.fp8_is_fnuz else (7, 0x7E)
    table = fp8_table(bias, largest_code)
    middles = [(low + high) / 2 for low, high in zip(table, table[1:], strict=False)]
    beyond = table[-1] + (table[-1] - table[-2]) / 2
    inputs = [float(value) for value in (*table, *middles, beyond, beyond * 2, Fraction(1, 2**140))]
    inputs += [float(np.nextafter(F32(x), F32(d))) for x in map(float, (*middles, beyond)) for d in (0, np.inf)]
    inputs = [sign * x for x in inputs for sign in (1, -1)] + [np.nan, np.inf, -np.inf]

    def definition(value: float) -> int:
        sign = 0x80 if math.copysign(1, value) < 0 else 0
        nan = 0x80 if chip.fp8_is_fnuz else sign | 0x7F
        if not math.isfinite(value) or abs(value) > beyond:
            return nan
        size = Fraction(abs(value))
        if size == beyond:
            return nan if (largest_code + 1) % 2 == 0 else sign | largest_code
        code = min(range(len(table)), key=lambda code: (abs(table[code] - size), code & 1))
        return 0x80 if chip.fp8_is_fnuz and code == 0 and sign else sign | code

    values = np.array(inputs, F32)
    found = fp8_bits(values, chip.fp8_is_fnuz, chip.fnuz_negative_zero)
    assert found.tolist() == [definition(float(value)) for value in values]
    codes = np.arange(largest_code + 1, dtype=U32)
    assert fp8_values(codes, chip.fp8_is_fnuz).tolist() == [float(value) for value in table]
    assert np.isnan(fp8_values(np.array([0x80 if chip.fp8_is_fnuz else 0x7F], U32), chip.fp8_is_fnuz)).all()


def test_fp8_pairs_go_to_the_half_that_op_sel_names():
    old = random_words(8)
    wave = execute(
        "v_cvt_pk_fp8_f32 v0, v1, -v2", "v_cvt_pk_fp8_f32 v3, v1, v2 op_sel:[0,0,1]", chip=GFX950, v0=old, v3=old,
        v1=1.0, v2=448.0,
    )  # fmt: skip
    assert np.array_equal(wave.vectors[0], old & U32(0xFFFF0000) | U32(0xFE38))
    assert np.array_equal(wave.vectors[3], old & U32(0xFFFF) | U32(0x7E380000))
    back = execute("v_cvt_pk_f32_fp8_e32 v[0:1], v2", chip=GFX950, v2=0x7E38)
    assert (floats(back, 0)[0], floats(back, 1)[0]) == (1, 448)


@pytest.mark.parametrize("byte", [0x80, 0])
def test_fnuz_negative_zero_is_a_choice(byte):
    """Descriptions of the instruction disagree, so both are tried."""
    chip = dataclasses.replace(GFX942, fnuz_negative_zero=byte)
    wave = execute("v_cvt_pk_fp8_f32 v0, v1, v2", chip=chip, v0=0, v1=-0.0, v2=F32(-(2.0**-12)))
    assert int(wave.vectors[0, 0]) == byte | byte << 8


def test_every_edge_is_among_the_inputs():
    assert all(
        np.isnan(random_floats(0)).any() if math.isnan(edge) else F32(edge) in random_floats(0) for edge in EDGES
    )
