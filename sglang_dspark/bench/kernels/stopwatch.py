"""The timing loop, its statistics and its budget. It knows a machine by seven calls, so a test gives it another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

WARM_UP = 3
FEWEST_REPETITIONS = 10
# About 100 us at the clocks of these chips: the host has queued the timed call by then, so its start is not waited for.
SPIN_CYCLES = 200_000
COLD, WARM = CACHES = ("cold", "warm")


class Machine(Protocol):
    """What the timing loop asks of a device."""

    def now_us(self) -> float:
        """The host's clock."""

    def clear_cache(self) -> None:
        """Queue a write of a buffer that is larger than every cache."""

    def keep_busy(self) -> None:
        """Queue work that touches no memory, for as long as the host takes to queue a call."""

    def mark(self) -> Any:
        """Queue a time stamp."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """The device's time between two stamps that it has reached."""

    def wait(self) -> None:
        """Until the device has nothing left to do."""

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call in a graph: what is returned replays it."""


class Gpu:
    """torch's current CUDA or ROCm device."""

    def __init__(self, flush_bytes: int) -> None:
        self._flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda")

    def now_us(self) -> float:
        """The host's clock."""
        return time.perf_counter() * 1e6

    def clear_cache(self) -> None:
        """Queue a write of the flush buffer."""
        self._flush.zero_()

    def keep_busy(self) -> None:
        """Spin on the device."""
        torch.cuda._sleep(SPIN_CYCLES)

    def mark(self) -> torch.cuda.Event:
        """Queue a timed event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Between two events that the device has reached."""
        return start.elapsed_time(end) * 1e3

    def wait(self) -> None:
        """Until the device is idle."""
        torch.cuda.synchronize()

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        """The replay of a graph of the call, which has run once outside of it."""
        # Whatever is compiled or allocated on the first call must not be captured.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay


class Cpu:
    """This machine's CPU, where a call has ended when it returns: it proves the benchmark, not a speed."""

    def __init__(self, flush_bytes: int) -> None:
        self._flush = torch.empty(flush_bytes, dtype=torch.uint8)

    def now_us(self) -> float:
        """The clock."""
        return time.perf_counter() * 1e6

    def clear_cache(self) -> None:
        """Write the flush buffer."""
        self._flush.zero_()

    def keep_busy(self) -> None:
        """Nothing: no call is queued."""

    def mark(self) -> float:
        """The clock."""
        return self.now_us()

    def elapsed_us(self, start: float, end: float) -> float:
        """Between two stamps."""
        return end - start

    def wait(self) -> None:
        """Nothing: a call that has returned has ended."""

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call: a CPU has no graphs."""
        return call


@dataclass(frozen=True)
class Timings:
    """One number a repetition. ``host_us`` is how long the call kept the host, the device's work not waited for."""

    device_us: tuple[float, ...]
    host_us: tuple[float, ...]

    def figures(self) -> dict[str, float]:
        """The percentiles that a row holds."""
        device = {f"p{percent}_us": percentile(self.device_us, percent) for percent in (20, 50, 80)}
        return {**device, "host_p50_us": percentile(self.host_us, 50)}


def percentile(values: Sequence[float], percent: float) -> float:
    """With a linear step between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def time_calls(machine: Machine, calls: Sequence[Callable[[], object]], repetitions: int, cache: str = COLD) -> Timings:
    """Time the calls in turn, between two stamps on the device, one call at a time.

    With a cold cache a buffer larger than every cache was written just before; with a warm one the same call ran.
    """
    device_us, host_us = [], []
    for repetition in range(repetitions):
        call = calls[repetition % len(calls)]
        if cache == COLD:
            machine.clear_cache()
        else:
            call()
            machine.keep_busy()
        start = machine.mark()
        begun_us = machine.now_us()
        call()
        host_us.append(machine.now_us() - begun_us)
        end = machine.mark()
        machine.wait()
        device_us.append(machine.elapsed_us(start, end))
    return Timings(tuple(device_us), tuple(host_us))


class Budget:
    """The seconds of a whole run, dealt out evenly to the cases that are left."""

    def __init__(self, seconds: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._end_s = now_s, now_s() + seconds

    def left_s(self) -> float:
        """What is left, 0 at least."""
        return max(0.0, self._end_s - self._now_s())

    def repetitions(self, asked: int, one_us: float, cases_left: int) -> int:
        """As many as asked, or as many as this case's part of the rest allows; 0 where that is too few to mean much."""
        allowed = int(self.left_s() / cases_left * 1e6 / max(one_us, 1e-3))
        return min(asked, allowed) if allowed >= min(asked, FEWEST_REPETITIONS) else 0


def time_within(
    machine: Machine,
    calls: Sequence[Callable[[], object]],
    asked: int,
    budget: Budget,
    cases_left: int,
    cache: str = COLD,
) -> Timings | None:
    """Time the calls as often as asked, or as the budget allows; None when it allows too little."""
    if budget.left_s() == 0:
        return None
    time_calls(machine, calls, len(calls), cache)  # a first call may compile, and a graph's first replay uploads it
    begun_us = machine.now_us()
    time_calls(machine, calls, WARM_UP, cache)
    one_us = (machine.now_us() - begun_us) / WARM_UP
    repetitions = budget.repetitions(asked, one_us, cases_left)
    return time_calls(machine, calls, repetitions, cache) if repetitions else None
