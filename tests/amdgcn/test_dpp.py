"""DPP, lane by lane: which lane each control reads, what an invalid read does, which lanes are written."""

from __future__ import annotations

import numpy as np
import pytest

from .registers import ALL_LANES, LANES, UnknownInstruction
from .snippets import execute, floats, random_floats

LANE = np.arange(LANES)
NOWHERE = None
# The lane that lane i reads, or None when the read is out of bounds.
CONTROLS = {
    "quad_perm:[1,0,3,2]": lambda i: i ^ 1,
    "quad_perm:[2,3,0,1]": lambda i: i ^ 2,
    "quad_perm:[3,3,0,1]": lambda i: i // 4 * 4 + (3, 3, 0, 1)[i % 4],
    "row_mirror": lambda i: i ^ 15,
    "row_half_mirror": lambda i: i ^ 7,
    "row_shl:1": lambda i: i + 1 if i % 16 < 15 else NOWHERE,
    "row_shl:4": lambda i: i + 4 if i % 16 < 12 else NOWHERE,
    "row_shr:1": lambda i: i - 1 if i % 16 > 0 else NOWHERE,
    "row_shr:8": lambda i: i - 8 if i % 16 > 7 else NOWHERE,
    "row_ror:1": lambda i: i // 16 * 16 + (i - 1) % 16,
    "row_ror:12": lambda i: i // 16 * 16 + (i - 12) % 16,
    "wave_shl:1": lambda i: i + 1 if i < 63 else NOWHERE,
    "wave_shr:1": lambda i: i - 1 if i > 0 else NOWHERE,
    "wave_rol:1": lambda i: (i + 1) % 64,
    "wave_ror:1": lambda i: (i - 1) % 64,
    "row_bcast:15": lambda i: i // 16 * 16 - 1 if i >= 16 else NOWHERE,
    "row_bcast:31": lambda i: 31 if i >= 32 else NOWHERE,
    "row_newbcast:5": lambda i: i // 16 * 16 + 5,
}
MASKS = "row_mask:0xf bank_mask:0xf"


@pytest.mark.parametrize("control", CONTROLS)
def test_reads_the_lane_of_its_control(control):
    """Out of bounds: 0 with bound_ctrl, the old value without."""
    source = [CONTROLS[control](lane) for lane in range(LANES)]
    zeroed = execute(f"v_mov_b32_dpp v1, v2 {control} {MASKS} bound_ctrl:1", v1=1000, v2=LANE + 1)
    assert zeroed.vectors[1].tolist() == [0 if lane is NOWHERE else lane + 1 for lane in source]
    kept = execute(f"v_mov_b32_dpp v1, v2 {control} {MASKS}", v1=1000, v2=LANE + 1)
    assert kept.vectors[1].tolist() == [1000 if lane is NOWHERE else lane + 1 for lane in source]


@pytest.mark.parametrize("control", CONTROLS)
def test_in_place_reads_the_old_lanes(control):
    """An emulator that goes lane by lane reads what it has just written."""
    moved = execute(f"v_mov_b32_dpp v2, v2 {control} {MASKS} bound_ctrl:1", v2=LANE + 1)
    apart = execute(f"v_mov_b32_dpp v1, v2 {control} {MASKS} bound_ctrl:1", v2=LANE + 1)
    assert np.array_equal(moved.vectors[2], apart.vectors[1])


def test_butterfly_sums_a_row_in_place():
    """Four additions in place give each lane of a row the row's sum."""
    steps = ("quad_perm:[1,0,3,2]", "quad_perm:[2,3,0,1]", "row_half_mirror", "row_mirror")
    lines = [f"v_add_f32_dpp v3, v3, v3 {control} {MASKS} bound_ctrl:1" for control in steps]
    wave = execute(*lines, v3=LANE.astype(np.float32))
    assert floats(wave, 3).tolist() == [float(sum(range(row * 16, row * 16 + 16))) for row in LANE // 16]


@pytest.mark.parametrize(("row_mask", "bank_mask"), [(0xF, 0x5), (0xF, 0xA), (0x2, 0xF), (0xA, 0x3)])
@pytest.mark.parametrize("name", ["v_mov_b32", "v_add_u32"])
def test_masks_stop_the_write_and_not_the_read(name, row_mask, bank_mask):
    """Bank masks count for every instruction, not for moves alone."""
    sources = "v2" if name == "v_mov_b32" else "v2, v4"
    control = f"row_shl:4 row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}"
    wave = execute(f"{name}_dpp v1, {sources} {control}", v1=1000, v2=LANE + 1, v4=0)
    for lane, found in enumerate(wave.vectors[1].tolist()):
        written = row_mask >> lane // 16 & 1 and bank_mask >> lane % 16 // 4 & 1 and lane % 16 < 12
        assert found == (lane + 5 if written else 1000)


def test_xor_4_by_two_masked_shifts():
    """The two moves with which lanes trade places four apart."""
    wave = execute(
        "v_mov_b32_dpp v1, v2 row_shl:4 row_mask:0xf bank_mask:0x5",
        "v_mov_b32_dpp v1, v2 row_shr:4 row_mask:0xf bank_mask:0xa",
        v1=1000,
        v2=LANE,
    )
    assert wave.vectors[1].tolist() == (LANE ^ 4).tolist()


def test_a_lane_that_is_switched_off_is_an_invalid_source():
    odd = LANE % 2 == 1
    control = f"quad_perm:[1,0,3,2] {MASKS}"
    assert execute(f"v_mov_b32_dpp v1, v2 {control}", v1=7, v2=LANE, lanes=odd).vectors[1].tolist() == [7] * LANES
    zeroed = execute(f"v_mov_b32_dpp v1, v2 {control} bound_ctrl:1", v1=7, v2=LANE, lanes=odd)
    assert zeroed.vectors[1].tolist() == [0 if lane % 2 else 7 for lane in range(LANES)]


def test_modifiers_apply_to_the_moved_value():
    values = random_floats(1)
    wave = execute(f"v_add_f32_dpp v1, -v2, |v3| row_mirror {MASKS} bound_ctrl:1", v2=values, v3=values)
    with np.errstate(all="ignore"):
        expected = -values[LANE ^ 15] + np.abs(values)
    assert np.array_equal(floats(wave, 1), expected, equal_nan=True)


@pytest.mark.parametrize("line", ["v_mov_b32_dpp v1, v2 row_share:3 row_mask:0xf bank_mask:0xf"])
def test_an_unknown_control_is_named(line):
    from .chip import GFX942
    from .decode import parse_text
    from .launch import bind

    with pytest.raises(UnknownInstruction, match="row_share:3"):
        bind(parse_text(line), GFX942)


def test_everything_is_active_by_default():
    assert ALL_LANES.all() and ALL_LANES.size == LANES
