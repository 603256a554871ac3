"""Typed look-ups in a config that collect what is wrong instead of stopping at the first.

A value of another type is never turned into the asked one: `"false"` is not false, 7.0 not 7, and 1e999 no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

Table = Mapping[str, Any]


class Keys:
    """The keys of a config, and the problems found while reading them.

    Every look-up takes another ``table`` where a key is nested, and a ``prefix`` that names it in messages.
    """

    def __init__(self, values: Table) -> None:
        self.values = values
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        """Note a problem."""
        self.problems.append(text)

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is."""
        return self.values.get(name, default)

    def table(self, name: str, nullable: bool = True) -> dict[str, Any]:
        """A nested table; empty where there is none, or where it is null."""
        found = self.values.get(name, None if nullable else {})
        if found is None and nullable:
            return {}
        if not isinstance(found, Mapping):
            self.problem(f"{name}: asked for a table, found {shown(found)}")
            return {}
        return dict(found)

    def integer(self, name: str, table: Table | None = None, prefix: str = "") -> int:
        """A whole number, which must be there."""
        found = (self.values if table is None else table).get(name)
        if type(found) is not int:
            self.problem(f"{prefix}{name}: asked for a whole number, found {shown(found)}")
            return 0
        return found

    def number(self, name: str, table: Table | None = None) -> float:
        """A finite number, which must be there."""
        found = (self.values if table is None else table).get(name)
        if not is_number(found):
            self.problem(f"{name}: asked for a number, found {shown(found)}")
            return 0.0
        return float(found)

    def integers(self, name: str, table: Table | None = None, prefix: str = "") -> tuple[int, ...]:
        """A list of whole numbers, which must be there."""
        found = (self.values if table is None else table).get(name)
        if not isinstance(found, (list, tuple)) or not all(type(item) is int for item in found):
            self.problem(f"{prefix}{name}: asked for a list of whole numbers, found {shown(found)}")
            return ()
        return tuple(found)

    def flag(self, name: str, default: bool, table: Table | None = None) -> bool:
        """True or false; the default where the key is absent."""
        found = (self.values if table is None else table).get(name, default)
        if not isinstance(found, bool):
            self.problem(f"{name}: asked for true or false, found {shown(found)}")
            return default
        return found

    def word(self, name: str, default: str | None = None) -> str:
        """A string; the default where the key is absent and there is one."""
        found = self.values.get(name, default)
        if not isinstance(found, str):
            self.problem(f"{name}: asked for a word, found {shown(found)}")
            return ""
        return found


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number that float32 can hold: no bool, no NaN, no 10**400."""
    return type(value) in (int, float) and abs(value) < 2**127


def shown(value: Any) -> str:
    """A value for a message; long ones are cut."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
