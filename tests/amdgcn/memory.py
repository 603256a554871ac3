"""Device memory as a set of numpy buffers at given addresses. Whatever lies outside them faults.

A buffer may be given its real host address (so that argument structs made for a real launch work unchanged) or any
other one: a window of a pool that lies past 2 GiB needs no 2 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LINE_BYTES = 128


class MemoryFault(Exception):
    """An access outside every buffer, to a read-only one, or unaligned."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """Bytes at an address, named for messages and counters."""

    name: str
    address: int
    data: np.ndarray  # [bytes] uint8, shared with its owner
    writable: bool

    @property
    def end(self) -> int:
        return self.address + self.data.size


class Memory:
    """All buffers that a launch may touch."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._starts = np.zeros(0, np.uint64)
        self._ends = np.zeros(0, np.uint64)

    def add(self, name: str, array: np.ndarray, address: int | None = None, writable: bool = False) -> int:
        """Make a dense array's bytes accessible, at their host address unless another is given. Returns the address."""
        assert array.flags.c_contiguous, f"{name} is not dense: give the storage that it is a view of"
        data = array.reshape(-1).view(np.uint8)
        buffer = Buffer(name, array.ctypes.data if address is None else address, data, writable)
        if data.size:
            for other in self.buffers:
                assert buffer.end <= other.address or other.end <= buffer.address, f"{name} overlaps {other.name}"
            self.buffers = sorted([*self.buffers, buffer], key=lambda one: one.address)
            self._starts = np.array([one.address for one in self.buffers], np.uint64)
            self._ends = np.array([one.end for one in self.buffers], np.uint64)
        return buffer.address

    def load(self, addresses: np.ndarray, lanes: np.ndarray, width: int) -> tuple[np.ndarray, set[str]]:
        """Bytes [n, width] at addresses [n] uint64, and the names of the buffers they came from."""
        result = np.zeros((addresses.size, width), np.uint8)
        names = set()
        for buffer, here, offsets in self._find(addresses, lanes, width, "load"):
            result[here] = buffer.data[offsets]
            names.add(buffer.name)
        return result, names

    def store(self, addresses: np.ndarray, lanes: np.ndarray, values: np.ndarray) -> set[str]:
        """Write bytes [n, width] to addresses [n]. Lanes that put different values into one byte are a fault here."""
        names = set()
        for buffer, here, offsets in self._find(addresses, lanes, values.shape[1], "store"):
            if not buffer.writable:
                raise MemoryFault(f"store to {buffer.name}, which is read-only, by lane {lanes[here][0]}")
            buffer.data[offsets] = values[here]
            if not np.array_equal(buffer.data[offsets], values[here]):
                raise MemoryFault(f"lanes of one store write different values to the same byte of {buffer.name}")
            names.add(buffer.name)
        return names

    def _find(self, addresses: np.ndarray, lanes: np.ndarray, width: int, what: str):
        """Each buffer that is hit, which of the accesses hit it, and their byte offsets in it."""
        if addresses.size == 0:
            return
        unaligned = addresses % np.uint64(min(width, 4)) != 0
        if unaligned.any():
            self._fault(f"unaligned {what}", addresses, lanes, width, unaligned)
        if not self.buffers:
            self._fault(f"{what} outside memory", addresses, lanes, width, np.ones(addresses.size, bool))
        index = np.searchsorted(self._starts, addresses, side="right") - 1
        ends = self._ends[index]
        outside = (index < 0) | (addresses > ends) | (addresses + np.uint64(width) > ends)
        if outside.any():
            self._fault(f"{what} outside memory", addresses, lanes, width, outside)
        for each in np.unique(index):
            here = np.flatnonzero(index == each)
            offsets = (addresses[here] - self._starts[each]).astype(np.int64)
            yield self.buffers[each], here, offsets[:, None] + np.arange(width)

    def _fault(self, what: str, addresses: np.ndarray, lanes: np.ndarray, width: int, bad: np.ndarray) -> None:
        first = np.flatnonzero(bad)[0]
        address = int(addresses[first])
        nearest = min(self.buffers, key=lambda one: max(one.address - address, address - one.end), default=None)
        where = f"; nearest is {nearest.name} {nearest.address:#x}..{nearest.end:#x}" if nearest else ""
        raise MemoryFault(f"{what}: {width} bytes at {address:#x} by lane {lanes[first]}{where}")


def lines_touched(addresses: np.ndarray, width: int) -> int:
    """How many cache lines of 128 bytes these accesses touch together."""
    first, last = addresses // np.uint64(LINE_BYTES), (addresses + np.uint64(width - 1)) // np.uint64(LINE_BYTES)
    return np.unique(np.concatenate((first, last))).size
