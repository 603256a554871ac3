"""Loads and stores of every width and space, and the faults that only an emulator shows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from .memory import Memory, MemoryFault, lines_touched
from .registers import LANES, U32, U64
from .snippets import execute, random_words

LANE = np.arange(LANES)
BASE = 0x7F00_0000_0000


def bytes_at(count: int = 4096) -> np.ndarray:
    return (np.arange(count) * 37 % 251).astype(np.uint8)


def memory_with(data: np.ndarray, writable: bool = True) -> Memory:
    memory = Memory()
    memory.add("data", data, BASE, writable)
    return memory


def addresses(step: int) -> np.ndarray:
    return np.uint64(BASE) + (LANE * step).astype(U64)


@pytest.mark.parametrize(
    ("name", "width", "convert"),
    [
        ("ubyte", 1, lambda raw, old: [int.from_bytes(raw, "little")]),
        ("sbyte", 1, lambda raw, old: [int.from_bytes(raw, "little", signed=True) & 0xFFFFFFFF]),
        ("ushort", 2, lambda raw, old: [int.from_bytes(raw, "little")]),
        ("sshort", 2, lambda raw, old: [int.from_bytes(raw, "little", signed=True) & 0xFFFFFFFF]),
        ("short_d16", 2, lambda raw, old: [old & 0xFFFF0000 | int.from_bytes(raw, "little")]),
        ("short_d16_hi", 2, lambda raw, old: [old & 0xFFFF | int.from_bytes(raw, "little") << 16]),
        ("ubyte_d16_hi", 1, lambda raw, old: [old & 0xFFFF | int.from_bytes(raw, "little") << 16]),
        ("dword", 4, lambda raw, old: np.frombuffer(raw, U32).tolist()),
        ("dwordx2", 8, lambda raw, old: np.frombuffer(raw, U32).tolist()),
        ("dwordx3", 12, lambda raw, old: np.frombuffer(raw, U32).tolist()),
        ("dwordx4", 16, lambda raw, old: np.frombuffer(raw, U32).tolist()),
    ],
)
def test_loads(name, width, convert):
    """Inactive lanes keep their registers; the others get their bytes, extended as the name says."""
    data, active = bytes_at(), LANE % 5 != 0
    operand = f"v[8:{7 + width // 4}]" if width > 4 else "v8"
    old = random_words(1)
    wave = execute(
        f"global_load_{name} {operand}, v[2:3], off offset:32", memory=memory_with(data), lanes=active,
        v2=addresses(20), v8=old, v9=old, v10=old, v11=old,
    )  # fmt: skip
    for lane in LANE:
        raw = data[lane * 20 + 32 :][:width].tobytes()
        expected = convert(raw, int(old[lane])) if active[lane] else [int(old[lane])] * max(width // 4, 1)
        assert wave.vectors[8 : 8 + len(expected), lane].tolist() == expected
    assert wave.counters.bytes["load"] == width * active.sum()


@pytest.mark.parametrize(
    ("name", "width", "shift"),
    [("byte", 1, 0), ("byte_d16_hi", 1, 16), ("short", 2, 0), ("short_d16_hi", 2, 16), ("dword", 4, 0),
     ("dwordx2", 8, 0), ("dwordx3", 12, 0), ("dwordx4", 16, 0)],
)  # fmt: skip
def test_stores_change_their_bytes_and_no_other(name, width, shift):
    data, active = bytes_at(), LANE % 5 != 0
    before = data.copy()
    words = [random_words(i) for i in range(4)]
    operand = f"v[8:{7 + width // 4}]" if width > 4 else "v8"
    execute(
        f"global_store_{name} v[2:3], {operand}, off offset:-4", memory=memory_with(data), lanes=active,
        v2=addresses(20) + U64(4), **{f"v{8 + i}": word for i, word in enumerate(words)},
    )  # fmt: skip
    expected = before
    for lane in LANE[active]:
        value = b"".join(int(word[lane] >> U32(shift)).to_bytes(4, "little") for word in words)[:width]
        expected[lane * 20 : lane * 20 + width] = np.frombuffer(value, np.uint8)
    assert np.array_equal(data, expected)


def test_scalar_base_takes_an_unsigned_offset():
    data = bytes_at()
    line = "global_load_dword v1, v0, s[2:3] offset:-4 nt"
    wave = execute(line, memory=memory_with(data), v0=LANE * 4 + 8, s2=BASE - 4)
    assert wave.vectors[1].tolist() == data.view(U32)[:LANES].tolist()
    high = Memory()
    high.add("high", data, BASE + 0xFFFFF000)
    wave = execute("global_load_dword v1, v0, s[2:3]", memory=high, v0=0xFFFFF000 + LANE * 4, s2=BASE)
    assert wave.vectors[1].tolist() == data.view(U32)[:LANES].tolist()


def test_buffers_check_their_range():
    """Past the end a load gives 0 and a store does nothing; an offset of 2^31 is how a mask switches lanes off."""
    data = bytes_at(256)
    before = data.copy()
    offsets = np.where(LANE % 2 == 0, LANE * 4, 2**31)
    resource = {"s4": BASE, "s6": 160, "s7": 0x27000}
    wave = execute("buffer_load_dword v1, v0, s[4:7], 0 offen", memory=memory_with(data), v0=offsets, v1=5, **resource)
    inside = (LANE % 2 == 0) & (LANE * 4 + 4 <= 160)
    assert wave.vectors[1].tolist() == np.where(inside, before.view(U32), 0).tolist()
    execute("buffer_store_short v2, v0, s[4:7], 0 offen", memory=memory_with(data), v0=offsets, v2=0xABCD, **resource)
    before.view(np.uint16)[::2][inside] = 0xABCD
    assert np.array_equal(data, before)


def test_scalar_loads():
    data = bytes_at()
    wave = execute(
        "s_load_dwordx4 s[4:7], s[2:3], 0x10", "s_load_dword s8, s[2:3], 0x0", memory=memory_with(data), s2=BASE
    )
    assert [wave.scalar(i) for i in (4, 5, 6, 7, 8)] == data.view(U32)[[4, 5, 6, 7, 0]].tolist()


def test_lds_in_all_widths():
    wave = execute(
        "ds_write_b64 v0, v[2:3] offset:8", "ds_read_b32 v4, v0 offset:12", "ds_read_u16 v5, v0 offset:10",
        "ds_write_b8 v0, v4 offset:9", "ds_read_i8 v6, v0 offset:9",
        lds_bytes=2048, v0=LANE * 16, v2=0x89ABCDEF, v3=LANE + 0x80,
    )  # fmt: skip
    assert wave.vectors[4].tolist() == (LANE + 0x80).tolist()
    assert wave.vectors[5].tolist() == [0x89AB] * LANES
    assert wave.vectors[6].view(np.int32).tolist() == (LANE + 0x80).astype(np.uint8).view(np.int8).tolist()


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        ("global_load_dwordx4 v[4:7], v[2:3], off", {"v2": addresses(68)}, r"load outside memory: 16 bytes .* lane 61"),
        ("global_load_dword v4, v[2:3], off offset:-4", {"v2": addresses(4)}, "load outside memory: 4 bytes .* lane 0"),
        ("global_store_dword v[2:3], v4, off", {"v2": addresses(4)}, "store to data, which is read-only"),
        ("global_load_dword v4, v[2:3], off offset:2", {"v2": addresses(4)}, "unaligned load"),
        ("s_load_dword s4, s[2:3], 0x1000", {"s2": BASE}, "s_load_dword s4, .* outside memory"),
        ("flat_load_dword v4, v[2:3]", {"v2": np.arange(LANES).astype(U64) * U64(4)}, "outside memory"),
        ("ds_read_b32 v4, v0 offset:64", {"v0": LANE}, "ds_read_b32 v4, v0 offset:64: .*"),
    ],
)
def test_faults_name_the_instruction_and_the_lane(line, words, message):
    with pytest.raises(MemoryFault, match=message) as fault:
        execute(line, memory=memory_with(bytes_at(), writable=False), lds_bytes=64, **words)
    assert line.split()[0] in str(fault.value)


@pytest.mark.parametrize("size", [13, 14, 15])
def test_the_last_byte_of_a_buffer_counts(size):
    with pytest.raises(MemoryFault, match="outside memory"):
        execute("s_load_dword s4, s[2:3], 0xc", memory=memory_with(bytes_at(size)), s2=BASE)
    execute("s_load_dword s4, s[2:3], 0x8", memory=memory_with(bytes_at(size)), s2=BASE)


def test_an_inactive_lane_may_hold_any_address():
    lanes = LANE < 2
    execute("global_load_dword v4, v[2:3], off", memory=memory_with(bytes_at(8)), lanes=lanes, v2=addresses(4))


def test_lanes_that_disagree_about_a_byte():
    data = bytes_at()
    same = np.full(LANES, BASE, U64)
    execute("global_store_dword v[2:3], v4, off", memory=memory_with(data), v2=same, v4=7)
    assert int(data.view(U32)[0]) == 7
    with pytest.raises(MemoryFault, match="different values"):
        execute("global_store_dword v[2:3], v4, off", memory=memory_with(data), v2=same, v4=LANE)


def test_a_window_far_away_needs_no_memory_before_it():
    """How a pool past 2 GiB is tested."""
    data = bytes_at(64)
    memory = Memory()
    memory.add("row", data, BASE + 3 * 2**32)
    wave = execute("v_mad_u64_u32 v[0:1], s[0:1], v4, v5, v[2:3]", "global_load_dword v6, v[0:1], off", memory=memory,
                   v2=np.full(LANES, BASE, U64), v4=3 * 2**16, v5=2**16)  # fmt: skip
    assert wave.vectors[6].tolist() == [int(data.view(U32)[0])] * LANES


def test_buffers_may_not_overlap():
    memory = memory_with(bytes_at())
    with pytest.raises(AssertionError, match="overlaps data"):
        memory.add("other", bytes_at(4), BASE + 8)


def test_counts_of_lines_and_buffers():
    data = bytes_at(16384)
    wave = execute(
        "global_load_dwordx4 v[4:7], v[2:3], off", "global_load_dword v4, v0, s[2:3]", memory=memory_with(data),
        v2=addresses(16), v0=LANE * 128, s2=BASE,
    )  # fmt: skip
    assert wave.counters.lines["load"] == 8 + 64
    assert wave.counters.accesses == {("load", "data", 16): 1, ("load", "data", 4): 1}
    assert lines_touched(np.array([BASE + 120], U64), 16) == 2


def test_messages_say_what_is_near():
    with pytest.raises(MemoryFault, match=re.escape("nearest is data")):
        execute("s_load_dword s4, s[2:3], 0x0", memory=memory_with(bytes_at(16)), s2=BASE + 16)
