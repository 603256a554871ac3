"""The timing loop and its statistics, on a machine whose times are known."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from sglang_dspark.bench.kernels import stopwatch
from sglang_dspark.bench.kernels.stopwatch import Timings, percentile, time_calls, time_within

from .machines import FakeMachine


def test_every_call_has_a_cold_cache_and_stamps_of_its_own():
    """A flush inside the stamps would be timed; one left out would time a warm cache."""
    machine = FakeMachine()
    time_calls(machine, [lambda: machine.log.append("call")], 2)
    assert machine.log == ["flush", "mark", "call", "mark", "wait"] * 2


def test_a_warm_call_has_run_just_before_and_finds_the_device_busy():
    """Without the spin the device would wait for the host inside the stamps; a flush would time a cold cache."""
    machine = FakeMachine()
    time_calls(machine, [lambda: machine.log.append("call")], 2, stopwatch.WARM)
    assert machine.log == ["call", "spin", "mark", "call", "mark", "wait"] * 2


def test_warm_calls_are_each_their_own():
    """Another input set's call would warm the cache for nobody."""
    machine, seen = FakeMachine(), []
    time_calls(machine, [lambda: seen.append("a"), lambda: seen.append("b")], 4, stopwatch.WARM)
    assert seen == list("aabbaabb")


def test_inputs_are_rotated():
    machine, seen = FakeMachine(), []
    time_calls(machine, [lambda: seen.append("a"), lambda: seen.append("b"), lambda: seen.append("c")], 7)
    assert seen == list("abcabca")


def test_device_and_host_times_are_told_apart():
    """The host returns after 2 us; the device takes 5 us more."""
    machine = FakeMachine(call_us=5.0)
    timings = time_calls(machine, [lambda: machine.spend(2.0)], 4)
    assert timings.host_us == pytest.approx((2.0,) * 4)
    assert timings.device_us == pytest.approx((7.0,) * 4)


def test_figures_are_the_percentiles():
    timings = Timings(tuple(float(value) for value in range(101)), (3.0, 1.0, 2.0))
    assert timings.figures() == {"p20_us": 20.0, "p50_us": 50.0, "p80_us": 80.0, "host_p50_us": 2.0}


@pytest.mark.parametrize(
    ("values", "percent", "expected"), [((4.0,), 80, 4.0), ((2.0, 1.0), 50, 1.5), ((1, 2, 9), 80, 6.2)]
)
def test_percentile(values, percent, expected):
    assert percentile(values, percent) == pytest.approx(expected)


def test_one_outlier_moves_no_percentile():
    assert Timings((1.0,) * 99 + (1e6,), (1.0,)).figures()["p80_us"] == 1.0


def test_a_roomy_budget_gives_what_was_asked():
    machine = FakeMachine()
    timings = time_within(machine, [lambda: None], 50, machine.budget(10), cases_left=4)
    assert timings is not None and len(timings.device_us) == 50
    assert machine.log.count("flush") == 1 + stopwatch.WARM_UP + 50


def test_a_first_call_that_compiles_trims_nothing():
    """Every input set has a graph of its own, and each is slow once: neither timed, nor taken for its usual time."""
    machine = FakeMachine()
    slow = {name: True for name in "abcd"}

    def call(name):
        machine.spend(1e6 if slow[name] else 2.0)
        slow[name] = False

    calls = [lambda name=name: call(name) for name in slow]
    timings = time_within(machine, calls, 100, machine.budget(5), cases_left=2)
    assert timings is not None and len(timings.device_us) == 100 and max(timings.device_us) < 10


def test_a_tight_budget_is_dealt_out_evenly():
    """85 us a repetition, 40 ms for 4 cases: each gets about 10 ms, 117 repetitions less the warm-ups of the rest."""
    machine = FakeMachine()
    budget = machine.budget(0.040)
    counts = [len(time_within(machine, [lambda: None], 1000, budget, left).device_us) for left in (4, 3, 2, 1)]
    assert all(105 <= count <= 117 for count in counts), counts
    assert machine.clock_us <= 40_000


def test_too_little_is_not_timed_at_all():
    """Three repetitions have no percentiles: say so, and leave the time to the others."""
    machine = FakeMachine(flush_us=1000.0)
    assert time_within(machine, [lambda: None], 100, machine.budget(0.010), cases_left=2) is None
    assert machine.log.count("flush") == 1 + stopwatch.WARM_UP


def test_a_spent_budget_runs_nothing():
    machine = FakeMachine()
    budget = machine.budget(0.001)
    machine.spend(2000)
    assert time_within(machine, [lambda: None], 100, budget, cases_left=1) is None
    assert machine.log == [] and budget.left_s() == 0


def test_a_cpu_has_ended_when_a_call_returns():
    machine = stopwatch.Cpu(4096)
    timings = time_calls(machine, [machine.captured(lambda: sum(range(20_000)))], 3)
    assert all(device >= host > 0 for device, host in zip(timings.device_us, timings.host_us, strict=True))


class FakeGraphs:
    """torch.cuda's part in a capture, by the order in which it is used."""

    def __init__(self, monkeypatch) -> None:
        self.log: list[str] = []
        current = SimpleNamespace(wait_stream=lambda other: self.log.append("main waits"))
        side = SimpleNamespace(wait_stream=lambda other: self.log.append("side waits"))
        parts = {
            "Stream": lambda: side,
            "current_stream": lambda: current,
            "stream": lambda stream: self.within("side stream"),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
            "graph": lambda graph: self.within("capture"),
        }
        for name, part in parts.items():
            monkeypatch.setattr(stopwatch.torch.cuda, name, part)

    @contextmanager
    def within(self, what: str):
        self.log.append(f"begin {what}")
        yield
        self.log.append(f"end {what}")


def test_a_gpu_compiles_before_it_captures(monkeypatch):
    """A first call inside the capture would load modules and allocate there. What torch makes of it needs a GPU."""
    graphs = FakeGraphs(monkeypatch)
    gpu = stopwatch.Gpu.__new__(stopwatch.Gpu)
    replay = gpu.captured(lambda: graphs.log.append("call"))
    replay()
    assert graphs.log == ["side waits", "begin side stream", "call", "end side stream", "main waits",
                          "begin capture", "call", "end capture", "replay"]  # fmt: skip
