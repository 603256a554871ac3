"""Machines that are not there: what the timing loop sees of one, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

from sglang_dspark.bench.kernels.stopwatch import Budget


class FakeMachine:
    """A device whose every queued thing takes the time that the test says, and a log of what was queued.

    A call advances the clock by itself (through ``spend``); a graph is the call, unless ``capture`` says otherwise.
    """

    def __init__(self, call_us: float = 5.0, flush_us: float = 80.0) -> None:
        self.clock_us, self.flush_us, self.call_us = 0.0, flush_us, call_us
        self.log: list[str] = []
        self.capture: Callable[[Callable[[], object]], Callable[[], object]] = lambda call: call

    def spend(self, us: float) -> None:
        self.clock_us += us

    def now_us(self) -> float:
        return self.clock_us

    def clear_cache(self) -> None:
        self.log.append("flush")
        self.spend(self.flush_us)

    def keep_busy(self) -> None:
        self.log.append("spin")
        self.spend(self.flush_us)

    def mark(self) -> float:
        self.log.append("mark")
        return self.clock_us

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start + self.call_us

    def wait(self) -> None:
        self.log.append("wait")
        self.spend(self.call_us)

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        self.log.append("capture")
        return self.capture(call)

    def budget(self, seconds: float) -> Budget:
        """A budget on this machine's clock."""
        return Budget(seconds, lambda: self.clock_us / 1e6)
