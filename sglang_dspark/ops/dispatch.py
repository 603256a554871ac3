"""How an op is dispatched: backends are data, the choice is made once, and every refusal is kept.

A *refusal* means "this backend does not cover that": the next one may. A broken contract (wrong dtype, shape, device,
stride) is not a refusal: it raises, whatever the backend. `choose` runs when the pool is bound, before any graph is
captured; what it returns is one bound call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sglang_dspark.platforms import Platform

AUTO = "auto"


class NoBackend(RuntimeError):
    """Every backend that was asked refused; the message holds all the refusals."""


class NotCovered(Exception):
    """Raised by a backend's ``build`` for what only the tables show (an alignment, a driver): one more refusal."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


class UnknownBackend(ValueError):
    """A backend was named that the op does not have."""


@runtime_checkable
class KeepsCopies(Protocol):
    """A bound call that holds copies of its tables' norm multipliers, where others read the tables themselves."""

    def refresh(self) -> None:
        """Take over multipliers that were changed in place, in place: captured graphs hold the copies' addresses."""


@dataclass(frozen=True)
class Backend:
    """One implementation of an op.

    ``refusals(platform, spec)`` lists all the reasons why it does not cover the case, an empty list when it does.
    ``build(platform, spec, tables)`` binds it to the tables and returns the call that the hot path makes; it may still
    refuse, by raising `NotCovered`.
    """

    name: str
    refusals: Callable[[Platform, Any], list[str]]
    build: Callable[[Platform, Any, Any], Callable[..., None]]


@dataclass(frozen=True)
class Op:
    """An op: its name, every backend it has, and the check that raises on a broken contract."""

    name: str
    backends: tuple[Backend, ...]
    check: Callable[[Platform, Any, Any], None]

    def backend(self, name: str) -> Backend:
        """The backend of that name."""
        for backend in self.backends:
            if backend.name == name:
                return backend
        known = ", ".join(backend.name for backend in self.backends)
        raise UnknownBackend(f"asked for backend {name!r} of {self.name}; known are {known}: name one, or {AUTO!r}")


@dataclass(frozen=True)
class Choice:
    """The backend chosen for an op, its bound call, and why other backends were not covered.

    ``passed_over`` are those that the platform would rather have taken.
    """

    op: str
    backend: str
    run: Callable[..., None]
    refused: dict[str, tuple[str, ...]]
    passed_over: tuple[str, ...] = ()

    def refresh(self) -> None:
        """Have the bound call take over norm multipliers that were changed in place."""
        bound: object = self.run
        if isinstance(bound, KeepsCopies):
            bound.refresh()

    def describe(self) -> str:
        """One part of a log line, e.g. ``context_kv=torch (refused: triton: needs a GPU)``."""
        chosen = f"{self.op}={self.backend}"
        return f"{chosen} (refused: {_listed(self.refused)})" if self.refused else chosen

    def describe_passed_over(self) -> str:
        """One sentence for a warning, with the reasons of each that was passed over."""
        reasons = _listed({name: self.refused[name] for name in self.passed_over})
        return f"{self.op} runs as {self.backend}, which is slower than what this platform offers: {reasons}"


def choose(op: Op, platform: Platform, spec: Any, tables: Any, requested: str = AUTO) -> Choice:
    """Pick a backend of an op and bind it to the tables.

    ``auto`` takes the platform's first backend without refusals; ``Choice.refused`` then holds what every other
    backend of the op refuses, offered on this platform or not. A backend named by the user never falls back: it may
    be one that the platform does not offer, and all its refusals are raised together.
    """
    named = None if requested == AUTO else op.backend(requested)
    candidates = (named,) if named else tuple(op.backend(name) for name in platform.backends(op.name))
    refused = _refusals((named,) if named else op.backends, platform, spec)
    for place, backend in enumerate(candidates):
        if backend.name in refused:
            continue
        op.check(platform, spec, tables)
        try:
            run = backend.build(platform, spec, tables)
            return Choice(op.name, backend.name, run, refused, tuple(each.name for each in candidates[:place]))
        except NotCovered as refusal:
            refused[backend.name] = refusal.reasons
    advice = (
        f"choose {AUTO!r} or another backend" if named else "change what is refused, or add a backend that covers it"
    )
    raise NoBackend(
        f"asked for a {requested!r} backend of {op.name} on {platform.name} ({platform.arch}) with {spec}; "
        f"refused: {_listed(refused)}. What to do: {advice}"
    )


def _refusals(backends: tuple[Backend, ...], platform: Platform, spec: Any) -> dict[str, tuple[str, ...]]:
    found = ((backend.name, tuple(backend.refusals(platform, spec))) for backend in backends)
    return {name: reasons for name, reasons in found if reasons}


def _listed(refused: dict[str, tuple[str, ...]]) -> str:
    return " | ".join(f"{name}: {'; '.join(reasons)}" for name, reasons in refused.items())
