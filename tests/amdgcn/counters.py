"""What a launch did: instructions by kind, memory accesses by buffer and width, and serialised round trips.

A row, where a figure is given per row, is one K row or one V row of one head: D elements. It is the caller's to count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sglang_dspark.bench.kernels.instruction_kinds import kind_of

__all__ = ["Counters", "RoundTrips", "kind_of"]


@dataclass
class Counters:
    """Of one wave, or of several added up (then ``round_trips`` is the most that one of them had)."""

    waves: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    accesses: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # (load or store, buffer, bytes a lane)
    bytes: Counter[str] = field(default_factory=Counter)  # load or store: what active lanes asked for
    lines: Counter[str] = field(default_factory=Counter)  # load or store: cache lines an instruction, added up
    round_trips: int = 0

    @property
    def executed(self) -> int:
        """All instructions, waits and no-ops included."""
        return sum(self.kinds.values())

    @property
    def vector_memory(self) -> int:
        """Vector memory instructions."""
        return self.kinds["vector_load"] + self.kinds["vector_store"]

    def add(self, other: Counters) -> None:
        """Add another wave's, or another launch's, figures."""
        self.waves += other.waves
        for name in ("kinds", "names", "accesses", "bytes", "lines"):
            getattr(self, name).update(getattr(other, name))
        self.round_trips = max(self.round_trips, other.round_trips)

    def memory_access(self, what: str, buffers: set[str], width: int, lanes: int, lines: int) -> None:
        """One vector memory instruction with this many active lanes."""
        for buffer in buffers:
            self.accesses[what, buffer, width] += 1
        self.bytes[what] += width * lanes
        self.lines[what] += lines


class RoundTrips:
    """The longest chain of loads that wait for one another.

    A load issued after waits up to depth d has depth d + 1; waiting for it raises the wave's depth to its own. Loads in
    flight together share a round trip, however many waits collect them. Counters: vmcnt (vector loads and stores) and
    lgkmcnt (scalar loads and LDS), each in order.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._in_flight: dict[str, list[int]] = {"vmcnt": [], "lgkmcnt": []}

    def issue(self, counter: str) -> None:
        """A memory instruction was issued."""
        self._in_flight[counter].append(self.depth + 1)

    def wait(self, counter: str, left: int) -> None:
        """Until at most ``left`` are in flight."""
        queue = self._in_flight.get(counter, [])
        while len(queue) > left:
            self.depth = max(self.depth, queue.pop(0))
