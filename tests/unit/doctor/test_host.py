"""What SGLang would leave out, and what moved in it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sglang_dspark.checkpoints.lint import Level
from sglang_dspark.doctor import Case, examine, host
from sglang_dspark.doctor.findings import Finding, ok
from sglang_dspark.serving import contract


@dataclass
class Distribution:
    name: str


@dataclass
class Point:
    """As much of an entry point as is read."""

    name: str
    value: str
    dist: Distribution


OURS = Point("dspark", host.OURS, Distribution("sglang-dspark"))
CHIP = Point("chip", "chip:Platform", Distribution("sglang-chip"))


def problems(environment: dict[str, str], plugins: list, platforms: list = ()) -> dict[str, str]:
    found = host.exclusions(Case(environment), plugins, platforms)
    return {f.subject: f.found for f in found if f.level is Level.PROBLEM}


@pytest.mark.parametrize("value", ["", "dspark", "other, dspark", " ,"])
def test_lists_that_do_not_leave_the_plugin_out(value: str) -> None:
    assert problems({"SGLANG_PLUGINS": value}, [OURS]) == {}


@pytest.mark.parametrize("value", ["other", "sglang-dspark", "dspark2,other"])
def test_lists_that_do(value: str) -> None:
    assert list(problems({"SGLANG_PLUGINS": value}, [OURS])) == ["SGLANG_PLUGINS"]


def test_a_plugin_that_is_not_installed() -> None:
    assert problems({}, [Point("other", "other:register", Distribution("other"))]) == {"entry point": "none"}


def test_a_platform_switch() -> None:
    """SGLang raises for an unknown platform, and leaves out plugins of platforms that were not selected."""
    assert problems({"SGLANG_PLATFORM": "chip"}, [OURS], [CHIP]) == {}
    assert "the installed ones are: chip" in problems({"SGLANG_PLATFORM": "x"}, [OURS], [CHIP])["SGLANG_PLATFORM"]
    sibling = Point("ours", "x:Platform", Distribution("sglang-dspark"))
    wrong = problems({"SGLANG_PLATFORM": "chip"}, [OURS], [CHIP, sibling])
    assert problems({"SGLANG_PLATFORM": "ours"}, [OURS], [CHIP, sibling]) == {}
    assert wrong == {"SGLANG_PLATFORM": "chip, so SGLang leaves out sglang-dspark"}


def test_another_version_that_agrees_is_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(contract, "installed_version", lambda: "0.5.24")
    levels = {f.subject: f.level for f in host.check_sglang(Case({}))}
    assert levels == {"version": Level.WARNING, "contract": Level.OK}


def test_the_cpu_engine_s_symbols_count_where_it_is_asked_for(monkeypatch) -> None:
    asked: list = []
    monkeypatch.setattr(contract, "mismatches", lambda symbols: asked.append(symbols) or [])
    for environment in ({"SGLANG_USE_CPU_ENGINE": "1"}, {}):
        list(host.check_sglang(Case(environment)))
    assert asked == [contract.HOST_SYMBOLS + contract.CPU_SYMBOLS, contract.HOST_SYMBOLS]


def test_a_check_that_breaks_does_not_hide_the_others() -> None:
    def broken(case: Case) -> list[Finding]:
        raise KeyError("x")

    groups = list(examine(Case({}), [("a", broken), ("b", lambda case: [ok("y", "z")]), ("c", lambda case: [])]))
    assert [(group.title, group.findings[0].level) for group in groups] == [("a", Level.PROBLEM), ("b", Level.OK)]
    assert "KeyError" in groups[0].findings[0].found
