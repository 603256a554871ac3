"""What an NVIDIA cubin says of its kernels: registers, stack, shared memory, size of the code.

The file is ELF. ``.nv.info`` is a list of attributes: a format byte, an attribute byte, a 16-bit size, and for the two
that are read here a symbol's index and a value. NVIDIA documents none of it; a test holds it to what ptxas prints.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sglang_dspark.bench.kernels.code_object import NOT_IN_FILE, SECTION

SIZED_VALUE, FRAME_BYTES, REGISTERS = 0x04, 0x11, 0x2F


@dataclass(frozen=True)
class CubinKernel:
    """One kernel."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    code_bytes: int


def kernel(image: bytes, name: str) -> CubinKernel:
    """A kernel's facts.

    Raises:
        ValueError: the file is no cubin, or has no such kernel.
    """
    sections = _sections(image)
    text = sections.get(f".text.{name}")
    if text is None or ".nv.info" not in sections:
        raise ValueError(f"expected a cubin with a kernel {name}, found sections {', '.join(sections)[:80]}")
    symbol, code = text
    attributes = _attributes(sections[".nv.info"][1])
    _, shared = sections.get(f".nv.shared.{name}", (0, b""))
    return CubinKernel(attributes[REGISTERS, symbol], attributes[FRAME_BYTES, symbol], len(shared), len(code))


def _sections(image: bytes) -> dict[str, tuple[int, bytes]]:
    """By name: the info field (of code: its kernel's symbol, in the low 24 bits) and the bytes."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError(f"expected a 64-bit ELF file, found {image[:5]!r}: compile the kernel again")
    offset, size, count, names_index = *struct.unpack_from("<Q", image, 40), *struct.unpack_from("<3H", image, 58)
    headers = [SECTION.unpack_from(image, offset + index * size) for index in range(count)]
    names_start = headers[names_index][4]
    found = {}
    for name, kind, _, _, start, length, _, info, *_ in headers:
        first = names_start + name
        data = bytes(length) if kind == NOT_IN_FILE else image[start : start + length]
        found[image[first : image.index(b"\0", first)].decode()] = (info & 0xFFFFFF, data)
    return found


def _attributes(data: bytes) -> dict[tuple[int, int], int]:
    """(attribute, symbol) to value, of the attributes that have both."""
    found, at = {}, 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<2BH", data, at)
        if form == SIZED_VALUE and size == 8:
            symbol, value = struct.unpack_from("<2I", data, at + 4)
            found[attribute, symbol] = value
        at += 4 + (size if form == SIZED_VALUE else 0)
    return found
