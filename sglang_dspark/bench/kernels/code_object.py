"""An AMDGPU code object: its kernels' code, descriptors and metadata.

Layouts: LLVM's AMDGPU usage guide, code object V5 (ELF sections, kernel descriptor, metadata note in MessagePack).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_dspark.bench.kernels.messagepack import unpack

METADATA_NOTE = 32
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
WRITABLE, ALLOCATED, NOT_IN_FILE, SYMBOL_TABLE, NOTE = 1, 2, 8, 2, 7


def bits(word: int, low: int, width: int) -> int:
    """A field of a register word."""
    return word >> low & (1 << width) - 1


@dataclass(frozen=True)
class Descriptor:
    """The 64 bytes that tell the hardware how to start a wave."""

    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    entry: int  # address of the first instruction
    user_sgprs: int  # kernarg pointer, preloaded arguments and the like; the workgroup's ids follow
    properties: int
    workgroup_ids: tuple[bool, bool, bool]
    workitem_ids: int  # 0: x, 1: x and y, 2: all three
    denormals_32: int  # 3 keeps float32 denormals, 0 flushes them
    rounding_32: int
    dx10_clamp: bool
    preload_dwords: int
    preload_offset: int  # dwords into the kernel arguments

    @staticmethod
    def parse(data: bytes, address: int) -> Descriptor:
        """The descriptor in these 64 bytes, which lie at that address."""
        lds, scratch, kernargs = struct.unpack_from("<3I", data, 0)
        (entry,) = struct.unpack_from("<q", data, 16)
        _, rsrc1, rsrc2 = struct.unpack_from("<3I", data, 44)
        properties, preload = struct.unpack_from("<2H", data, 56)
        return Descriptor(
            lds_bytes=lds,
            scratch_bytes=scratch,
            kernarg_bytes=kernargs,
            entry=address + entry,
            user_sgprs=bits(rsrc2, 1, 5),
            properties=properties,
            workgroup_ids=(bool(rsrc2 & 1 << 7), bool(rsrc2 & 1 << 8), bool(rsrc2 & 1 << 9)),
            workitem_ids=bits(rsrc2, 11, 2),
            denormals_32=bits(rsrc1, 16, 2),
            rounding_32=bits(rsrc1, 12, 2),
            dx10_clamp=bool(bits(rsrc1, 21, 1)),
            preload_dwords=bits(preload, 0, 7),
            preload_offset=bits(preload, 7, 9),
        )


@dataclass(frozen=True)
class Section:
    """A section of the file, with its bytes where it has any."""

    kind: int
    flags: int
    address: int
    data: bytes
    link: int

    @property
    def is_constant_data(self) -> bool:
        """Loaded, and never written: code and constants."""
        return bool(self.flags & ALLOCATED) and not self.flags & WRITABLE and bool(self.address and self.data)


class CodeObject:
    """A linked code object (.co, .hsaco)."""

    def __init__(self, image: bytes) -> None:
        if image[:5] != b"\x7fELF\x02":
            raise ValueError(f"expected a 64-bit ELF file, found {image[:5]!r}: compile the kernel again")
        offset, size, count = *struct.unpack_from("<Q", image, 40), *struct.unpack_from("<2H", image, 58)
        self.image = image
        self.sections = []
        for index in range(count):
            _, kind, flags, address, start, length, link, *_ = SECTION.unpack_from(image, offset + index * size)
            data = b"" if kind == NOT_IN_FILE else image[start : start + length]
            self.sections.append(Section(kind, flags, address, data, link))
        self.symbols = self._symbols()
        self.metadata = {kernel[".name"]: kernel for kernel in self._metadata()["amdhsa.kernels"]}

    def descriptor(self, kernel: str) -> Descriptor:
        """The descriptor of a kernel."""
        address, _ = self.symbols[f"{kernel}.kd"]
        return Descriptor.parse(self.bytes_at(address, 64), address)

    def bytes_at(self, address: int, length: int) -> bytes:
        """Loaded bytes."""
        for section in self.sections:
            if section.address and section.address <= address < section.address + len(section.data):
                return section.data[address - section.address :][:length]
        raise ValueError(f"no section holds address {address:#x}")

    def constant_data(self) -> list[tuple[int, np.ndarray]]:
        """What a kernel may read of its own code object: address and bytes of each section."""
        constant = (section for section in self.sections if section.is_constant_data)
        return [(section.address, np.frombuffer(section.data, np.uint8)) for section in constant]

    def _symbols(self) -> dict[str, tuple[int, int]]:
        found = {}
        for section in self.sections:
            if section.kind != SYMBOL_TABLE:
                continue
            names = self.sections[section.link].data
            for name, _, _, _, value, size in SYMBOL.iter_unpack(section.data):
                found[names[name : names.index(b"\0", name)].decode()] = (value, size)
        return found

    def _metadata(self) -> dict[str, Any]:
        for section in self.sections:
            if section.kind != NOTE:
                continue
            name_size, length, kind = struct.unpack_from("<3I", section.data)
            if kind == METADATA_NOTE:
                start = 12 + (name_size + 3) // 4 * 4
                return unpack(section.data[start : start + length])
        raise ValueError("the code object has no AMDGPU metadata note")
