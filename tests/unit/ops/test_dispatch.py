"""Choosing a backend: auto falls through refusals and keeps them, a named backend never falls back."""

from __future__ import annotations

import pytest

from sglang_dspark.ops.dispatch import Backend, NoBackend, NotCovered, Op, UnknownBackend, choose
from sglang_dspark.platforms import Platform

PLATFORM = Platform("cpu", "cpu", "cpu", "e4m3fn", 1, offers=(("add", ("fast", "slow")),))


def backend(name: str, *refusals: str) -> Backend:
    def build(platform, spec, tables):
        return lambda: (name, spec, tables)

    return Backend(name, lambda platform, spec: list(refusals), build)


def op(*backends: Backend, check=lambda platform, spec, tables: None) -> Op:
    return Op("add", backends, check)


def test_auto_takes_the_platforms_first():
    choice = choose(op(backend("slow"), backend("fast")), PLATFORM, "spec", "tables")
    assert choice.backend == "fast"
    assert choice.run() == ("fast", "spec", "tables")
    assert choice.describe() == "add=fast"
    assert choice.passed_over == ()


def test_auto_falls_through_and_keeps_every_refusal():
    choice = choose(op(backend("fast", "no GPU", "fp8"), backend("slow"), backend("other", "x")), PLATFORM, "s", "t")
    assert choice.backend == "slow"
    assert choice.refused == {"fast": ("no GPU", "fp8"), "other": ("x",)}
    assert choice.describe() == "add=slow (refused: fast: no GPU; fp8 | other: x)"


def test_what_the_platform_would_rather_have_taken_is_worth_a_warning():
    """A backend that is not offered here, or comes later, is not."""
    choice = choose(op(backend("fast", "no compiler"), backend("slow"), backend("other", "x")), PLATFORM, "s", "t")
    assert choice.passed_over == ("fast",)
    assert choice.describe_passed_over() == (
        "add runs as slow, which is slower than what this platform offers: fast: no compiler"
    )


def test_auto_never_takes_a_backend_the_platform_does_not_offer():
    with pytest.raises(NoBackend):
        choose(op(backend("fast", "a"), backend("slow", "b"), backend("other")), PLATFORM, "s", "t")


def test_all_refuse():
    with pytest.raises(NoBackend, match=r"asked for a 'auto' backend of add on cpu.*fast: a \| slow: b; c.*What to do"):
        choose(op(backend("fast", "a"), backend("slow", "b", "c")), PLATFORM, "s", "t")


def test_named_backend_never_falls_back():
    with pytest.raises(NoBackend, match="asked for a 'fast' backend.*refused: fast: a; b. What to do: choose 'auto'"):
        choose(op(backend("fast", "a", "b"), backend("slow")), PLATFORM, "s", "t", requested="fast")


def test_named_backend_need_not_be_offered():
    assert (
        choose(op(backend("fast"), backend("slow"), backend("other")), PLATFORM, "s", "t", "other").backend == "other"
    )


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownBackend, match="asked for backend 'hip' of add; known are fast, slow"):
        choose(op(backend("fast"), backend("slow")), PLATFORM, "s", "t", requested="hip")


def test_broken_contract_raises_instead_of_refusing():
    def check(platform, spec, tables):
        raise ValueError("wrong dtype")

    with pytest.raises(ValueError, match="wrong dtype"):
        choose(op(backend("fast"), backend("slow"), check=check), PLATFORM, "s", "t")


def test_tables_are_not_looked_at_when_all_refuse():
    """A pool whose layout is refused need not have the shape of a layout that is not."""

    def check(platform, spec, tables):
        raise ValueError("wrong shape")

    with pytest.raises(NoBackend):
        choose(op(backend("fast", "a"), backend("slow", "b"), check=check), PLATFORM, "s", "t")


def refuses_the_tables(name: str) -> Backend:
    def build(platform, spec, tables):
        raise NotCovered(["unaligned rows", "no driver"])

    return Backend(name, lambda platform, spec: [], build)


def test_a_refusal_while_binding_is_one_more_refusal():
    choice = choose(op(refuses_the_tables("fast"), backend("slow")), PLATFORM, "s", "t")
    assert choice.backend == "slow"
    assert choice.refused == {"fast": ("unaligned rows", "no driver")}
    assert choice.passed_over == ("fast",)


def test_a_named_backend_that_refuses_while_binding_raises():
    with pytest.raises(NoBackend, match="refused: fast: unaligned rows; no driver. What to do: choose 'auto'"):
        choose(op(refuses_the_tables("fast"), backend("slow")), PLATFORM, "s", "t", "fast")
