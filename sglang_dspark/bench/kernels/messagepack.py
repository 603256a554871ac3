"""A reader of MessagePack, as far as code object metadata uses it: maps, lists, strings, integers, booleans."""

from __future__ import annotations

import struct
from typing import Any

INTEGERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
LENGTHS = {0xD9: (">B", "string"), 0xDA: (">H", "string"), 0xDB: (">I", "string"), 0xDC: (">H", "list"),
           0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map")}  # fmt: skip
SINGLES = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Any:
    """The one value that these bytes hold."""
    return _Reader(data).value()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self) -> Any:
        tag = self._number(">B")
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._sized("map", tag & 15)
        if tag < 0xA0:
            return self._sized("list", tag & 15)
        if tag < 0xC0:
            return self._sized("string", tag & 31)
        if tag >= 0xE0:
            return tag - 256
        if tag in SINGLES:
            return SINGLES[tag]
        if tag in INTEGERS:
            return self._number(INTEGERS[tag])
        if tag in LENGTHS:
            form, kind = LENGTHS[tag]
            return self._sized(kind, self._number(form))
        raise ValueError(f"MessagePack type {tag:#x} is not read here")

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return number

    def _sized(self, kind: str, length: int) -> Any:
        if kind == "list":
            return [self.value() for _ in range(length)]
        if kind == "map":
            return {self.value(): self.value() for _ in range(length)}
        self._at += length
        return self._data[self._at - length : self._at].decode()
