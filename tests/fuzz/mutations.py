"""Ways to damage a JSON document or a file: a value of another kind, a key twice, a byte flipped.

Everything is decided by the `Random` that is handed in, so an input is known by its seed and its number.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

Json = Any
Path = tuple[str | int, ...]

VALUES: tuple[Json, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**32, 2**63, -(2**63), 10**30, 10**400, 10**4000),
    *(0.0, -0.0, 0.5, 1.0, 7.0, 1e-320, 1e38, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "x", "7", "true", "false", "null", "é", "\u202e", "a\nb", "\x1b[31m", "\x00", "\ud800", "x" * 5000),
    *("../x", "/etc/passwd", "..", ".", "full_attention", "sliding_attention", "vanilla", "gated", "rnn"),
    *([], [1], [[]], [None], [1, 3, 4], [0, 1], [-1], [1.0], ["a"], list(range(300)), {}, {"a": 1}, {"a": {"b": []}}),
    "<deep>",
)
TEXTS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"1e-999",
    b"\\ud800",
    b'"a":1,',
    b"null",
    b"[]",
    b"{}",
    b",",
    b"}",
    b"{",
    b"[" * 5000,
    b"\xff",
    b"\x00",
    b"\xef\xbb\xbf",
    b"/*",
    b"'",
    b"01",
    b"-",
    b'"',
    b"\\u0000",
)


def mutate(document: Json, pick: Random, names: Sequence[str]) -> tuple[Json, str]:
    """The document with one thing changed, and what was changed. `names` are keys that some reader knows."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    tables = [document, *(found for place in places if isinstance(found := at(document, place), dict))]
    kind = pick.choice(("replace", "replace", "replace", "remove", "add", "rename", "move", "swap"))
    if kind == "add" or not places:
        table, name, value = pick.choice(tables), pick.choice(names), made(pick)
        if isinstance(table, dict):
            table[name] = value
        return document, f"add {name} = {value!r:.80}"
    place = pick.choice(places)
    parent, key = at(document, place[:-1]), place[-1]
    if kind == "replace":
        parent[key] = made(pick, parent[key])
        return document, f"{place} = {parent[key]!r:.80}"
    if kind == "swap":
        other = pick.choice(places)
        if other[: len(place)] != place and place[: len(other)] != other:
            there = at(document, other[:-1])
            parent[key], there[other[-1]] = there[other[-1]], parent[key]
        return document, f"swap {place} and {other}"
    value = parent.pop(key)
    if kind == "rename" and isinstance(parent, dict):
        key = pick.choice(names)
        parent[key] = value
    if kind == "move":
        table = pick.choice([found for found in tables if found is not value and isinstance(found, dict)])
        table[str(key)] = value
    return document, f"{kind} {place} {key}"


def made(pick: Random, old: Json = None) -> Json:
    """A value: from the list, or the old one as something near it or of another type."""
    near: list[Json] = []
    if type(old) is int and abs(old) < 2**64:
        near = [old + 1, old - 1, old * 2, old // 2, -old, float(old), str(old), [old], bool(old)]
    elif type(old) is float and math.isfinite(old):
        near = [old * 2, -old, int(old), str(old), old * 1e300, [old]]
    elif isinstance(old, bool):
        near = [not old, int(old), str(old).lower(), [old]]
    elif isinstance(old, str):
        near = [old.upper(), old + " ", old[:-1], [old], {old: old}]
    elif isinstance(old, list):
        near = [old[:-1], old[::-1], old * 2, [*old, made(pick)], {"0": old}, str(old)]
    elif isinstance(old, dict):
        near = [list(old), list(old.items()), {**old, "x": 1}, str(old), None]
    value = pick.choice(near) if near and pick.random() < 0.5 else pick.choice(VALUES)
    return _deep(pick.choice((10, 40, 65, 200))) if value == "<deep>" else copy.deepcopy(value)


def text_of(document: Json, pick: Random) -> bytes:
    """The document as JSON, now and then with a key twice or all characters as they are."""
    text = json.dumps(document, ensure_ascii=pick.random() < 0.8, indent=pick.choice((None, 2)))
    if pick.random() < 0.1 and isinstance(document, dict) and document:
        key = pick.choice(list(document))
        text = f"{{{json.dumps(key)}: {json.dumps(made(pick, document[key]))}, {text.lstrip()[1:]}"
    return text.encode("utf-8", "surrogatepass")


def mutate_bytes(data: bytes, pick: Random, within: int | None = None) -> tuple[bytes, str]:
    """The data with one to three places damaged, in its first `within` bytes."""
    changed = bytearray(data)
    done = []
    for _ in range(pick.choice((1, 1, 2, 3))):
        place = pick.randrange(max(1, min(within or len(changed), len(changed))))
        kind = pick.choice(("flip", "flip", "byte", "delete", "insert", "repeat", "cut"))
        if kind == "flip" and changed:
            changed[place] ^= 1 << pick.randrange(8)
        elif kind == "byte" and changed:
            changed[place] = pick.randrange(256)
        elif kind == "delete":
            del changed[place : place + pick.choice((1, 1, 2, 8, 100))]
        elif kind == "insert":
            changed[place:place] = pick.choice(TEXTS)
        elif kind == "repeat":
            changed[place:place] = changed[place : place + pick.choice((1, 8, 64))]
        elif kind == "cut" and pick.random() < 0.3:
            del changed[place:]
        done.append(f"{kind} at {place}")
    return bytes(changed), ", ".join(done)


def at(document: Json, place: Path) -> Json:
    """What stands at a place."""
    for step in place:
        document = document[step]
    return document


def _places(document: Json, above: Path = ()) -> Any:
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield (*above, key)
        yield from _places(value, (*above, key))


def _deep(depth: int) -> Json:
    value: Json = 1
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return value
