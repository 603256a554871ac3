"""The header of a safetensors file: where each tensor's bytes lie, without reading one of them.

The format (github.com/huggingface/safetensors, README "Format"): eight bytes with the header's length, little endian;
the header, a JSON object of name -> dtype, shape and data_offsets; then the tensors' bytes, without gaps. The library
hands out tensors, whole and decoded. Converting a checkpoint moves bytes, of any dtype, a piece at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from sglang_dspark.checkpoints.json_text import open_plain, parse_json
from sglang_dspark.checkpoints.keys import shown

# A longer header is damage, or an attack on the reader's memory: it would name a quarter of a million tensors. The
# library's own limit is 100 MB.
MAX_HEADER_BYTES = 32 << 20
# torch's own limit; a longer shape is a product that takes minutes.
MAX_DIMENSIONS = 64

# Bits of an element, in the library's own order of dtypes: it writes the last ones first, which aligns every tensor.
BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
WRITING_ORDER = {dtype: rank for rank, dtype in enumerate(reversed(BITS))}


class DamagedFile(ValueError):
    """A file is no whole safetensors file; the message says what is wrong with it."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor's place in a file; `start` counts from the beginning of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


@dataclass(frozen=True)
class Header:
    """What one file holds."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check a file's header: every byte of the file belongs to exactly one tensor.

    Raises:
        OSError: the file cannot be opened.
        DamagedFile: it is cut off, or no safetensors file.
    """
    with open_plain(path) as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        header_bytes = int.from_bytes(file.read(8), "little")
        data_start = 8 + header_bytes
        if file_bytes < 8 or data_start > file_bytes or header_bytes > MAX_HEADER_BYTES:
            raise DamagedFile(f"the file is {file_bytes} bytes long and its header should end at byte {data_start}")
        text = file.read(header_bytes)
    try:
        content = parse_json(text, finite=True)
    except ValueError as error:
        raise DamagedFile(f"its header is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise DamagedFile(f"its header is a {type(content).__name__}, not a JSON object")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DamagedFile("its __metadata__ is no table of strings")
    tensors = {name: _stored(path, name, entry, data_start) for name, entry in content.items()}
    _require_no_gaps(tensors, data_start, file_bytes)
    return Header(tensors, metadata)


def make_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: dict[str, str]) -> bytes:
    """The first bytes of a file that holds `tensors`, each (name, dtype, shape, size in bytes), in this order.

    Written as the library writes it, so that a converted file can be equal to the original byte for byte.
    """
    content: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, dtype, shape, size_bytes in tensors:
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size_bytes]}
        end += size_bytes
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _stored(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    fields = entry if isinstance(entry, dict) else {}
    if others := fields.keys() - {"dtype", "shape", "data_offsets"}:
        raise DamagedFile(f"tensor {name} has the unknown fields {shown(sorted(others))}")
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise DamagedFile(f"tensor {name} has the unknown dtype {shown(dtype)}")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and len(shape) <= MAX_DIMENSIONS):
        found = f"shape {shown(shape)}, data_offsets {shown(offsets)}"
        raise DamagedFile(f"tensor {name} has no shape or no place: {found}")
    size_bytes = offsets[1] - offsets[0]
    if math.prod(shape) * BITS[dtype] != size_bytes * 8:
        raise DamagedFile(
            f"tensor {name} of shape {shown(shape)} in {dtype} does not take the {size_bytes} bytes it has"
        )
    return StoredTensor(path, dtype, tuple(shape), data_start + offsets[0], size_bytes)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _require_no_gaps(tensors: dict[str, StoredTensor], data_start: int, file_bytes: int) -> None:
    end = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size_bytes)):
        if tensor.start != end:
            raise DamagedFile(f"tensor {name} starts at byte {tensor.start}, the one before it ends at {end}")
        end += tensor.size_bytes
    if end != file_bytes:
        raise DamagedFile(f"the file is {file_bytes} bytes long, its tensors end at {end}")
