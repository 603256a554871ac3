"""Finding a function of the installed AITER and binding it by the names of its parameters.

Functions that AITER compiles at run time hide their declaration behind ``(*args, **kwargs)``; it is then read from the
schema under which AITER registers them with torch (aiter/jit/utils/torch_guard.py), made from that declaration.

A call is made by position, in the order of the function's own signature: behind AITER's Python declaration stands a
compiled function that may know other names. A parameter that we do not pass gets its default.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch

REQUIRED = inspect.Parameter.empty


class Unusable(Exception):
    """AITER, or a function of it, cannot be used; ``reasons`` says why, one sentence each."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True)
class Wanted:
    """A function that we call: its module, its name, and the parameters that we pass."""

    module: str
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A function of AITER, called with named arguments that it receives by position."""

    function: Callable[..., Any]
    order: tuple[tuple[str, Any], ...]  # each parameter with its default

    def __call__(self, **arguments: Any) -> Any:
        """Call it; ``arguments`` are exactly the parameters that were wanted."""
        return self.function(*[arguments.get(name, default) for name, default in self.order])


def find(wanted: Wanted) -> Call:
    """The function, ready to be called; raises `Unusable` when it is missing or its signature has drifted."""
    module = load(wanted.module)
    function = getattr(module, wanted.name, None)
    if not callable(function):
        raise Unusable(f"{wanted.module} has no {wanted.name}")
    parameters = _parameters(wanted.name, function)
    missing = [name for name in wanted.parameters if name not in parameters]
    unknown = [n for n, default in parameters.items() if default is REQUIRED and n not in wanted.parameters]
    reasons = []
    if missing:
        reasons.append(f"{wanted.name} has no parameter {', '.join(missing)}")
    if unknown:
        reasons.append(f"{wanted.name} asks for {', '.join(unknown)}, which this adapter does not know")
    if reasons:
        raise Unusable(*reasons)
    return Call(function, tuple(parameters.items()))


def _parameters(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Each parameter with its default, or `REQUIRED`; those by keyword alone only where they are required."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise Unusable(f"the signature of {name} cannot be read ({error})") from error
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return _registered_parameters(name)
    named = [p for p in parameters if p.kind != p.VAR_KEYWORD]
    return {p.name: p.default for p in named if p.kind != p.KEYWORD_ONLY or p.default is REQUIRED}


def _registered_parameters(name: str) -> dict[str, Any]:
    try:
        arguments = getattr(torch.ops.aiter, name).default._schema.arguments
    except AttributeError as error:
        raise Unusable(f"{name} hides its parameters, and is not registered with torch") from error
    defaults = {a.name: a.default_value if a.has_default_value() else REQUIRED for a in arguments}
    defaults.pop("dummy", None)  # added, and passed, by AITER where the first parameter is no tensor
    return defaults


def find_all(wanted: tuple[Wanted, ...]) -> tuple[Call, ...]:
    """Several functions, all the reasons together when one cannot be used."""
    calls: list[Call] = []
    reasons: list[str] = []
    for one in wanted:
        try:
            calls.append(find(one))
        except Unusable as unusable:
            reasons.extend(unusable.reasons)
    if reasons:
        raise Unusable(*reasons)
    return tuple(calls)


def load(name: str) -> ModuleType:
    """A module of AITER; raises `Unusable` when AITER is not installed, or cannot be imported here."""
    module = _import(name)
    if isinstance(module, str):
        raise Unusable(module)
    return module


@cache  # A failing import asks rocminfo every time, and there is one draft layer after another.
def _import(name: str) -> ModuleType | str:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == "aiter":
            return "aiter is not installed"
        return (
            f"{name} cannot be imported: it has no {missing}" if missing.startswith("aiter") else _failed(name, error)
        )
    except Exception as error:  # Without a GPU its import fails in whatever its probes of the machine raise.
        return _failed(name, error)


def _failed(name: str, error: Exception) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"{name} cannot be imported ({type(error).__name__}: {first_line})"
