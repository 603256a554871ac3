"""Writes safetensors files from the bytes of other ones, a piece at a time.

A file's header goes first and says where everything will lie, so the bytes can follow in order and no tensor is ever
in memory. They are copied as they are, whatever their dtype; the one exception is a 16-bit table among float32 tensors,
which is widened, exactly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from sglang_dspark.checkpoints.files import INDEX_NAME
from sglang_dspark.checkpoints.headers import WRITING_ORDER, StoredTensor, make_header

# Of one read; a multiple of every element's size.
PIECE_BYTES = 8 << 20

_WIDENED = {"BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """One tensor to write: its name, its bytes' place, and whether they become float32 on the way."""

    name: str
    source: StoredTensor
    widen: bool = False

    @property
    def dtype(self) -> str:
        """The dtype it is written in."""
        return "F32" if self.widen else self.source.dtype

    @property
    def size_bytes(self) -> int:
        """What it takes in the file."""
        return self.source.size_bytes * (2 if self.widen else 1)


def can_widen(source: StoredTensor) -> bool:
    """Whether every value of the tensor has its equal in float32."""
    return source.dtype in _WIDENED


def shards(placements: Sequence[Placement], max_shard_bytes: int) -> list[list[Placement]]:
    """The tensors of each file, none above the limit unless one tensor alone is.

    Ordered as the safetensors library writes them: by dtype, the widest first, then by name.
    """
    made: list[list[Placement]] = []
    room = 0
    for placement in sorted(placements, key=lambda p: (WRITING_ORDER[p.dtype], p.name)):
        if not made or placement.size_bytes > room:
            made.append([])
            room = max_shard_bytes
        made[-1].append(placement)
        room -= placement.size_bytes
    return made


def write_tensors(
    folder: Path,
    placements: Sequence[Placement],
    metadata: dict[str, str],
    max_shard_bytes: int,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> None:
    """Write the tensors into `folder`, with an index where one file does not hold them.

    Args:
        folder: exists.
        placements: each name once.
        metadata: of every file.
        max_shard_bytes: of the tensors in one file.
        on_bytes: told how many bytes were written, after every piece.

    Raises:
        OSError: a source file ended early, or the disk is full.
    """
    files = shards(placements, max_shard_bytes)
    names = ["model.safetensors"]
    if len(files) > 1:
        names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    for name, shard in zip(names, files, strict=True):
        with (folder / name).open("wb") as output:
            output.write(make_header([(p.name, p.dtype, p.source.shape, p.size_bytes) for p in shard], metadata))
            for placement in shard:
                for piece in _pieces(placement):
                    output.write(piece)
                    on_bytes(len(piece))
            sync(output)
    if len(files) > 1:
        weight_map = {p.name: name for name, shard in zip(names, files, strict=True) for p in shard}
        total = sum(p.size_bytes for p in placements)
        write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write a JSON file as transformers writes its own."""
    with path.open("wb") as output:
        output.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode("utf-8"))
        sync(output)


def sync(output: BinaryIO) -> None:
    """Bring a file's bytes to the disk, so that what is published survives a power cut."""
    output.flush()
    os.fsync(output.fileno())


def _pieces(placement: Placement) -> Iterator[bytes]:
    source = placement.source
    left = source.size_bytes
    with source.file.open("rb") as file:
        file.seek(source.start)
        while left:
            piece = file.read(min(PIECE_BYTES, left))
            if len(piece) < min(PIECE_BYTES, left):
                raise OSError(f"{source.file} ended early, {left - len(piece)} bytes before the end of a tensor")
            left -= len(piece)
            yield _widen(piece, source.dtype) if placement.widen else piece


def _widen(piece: bytes, dtype: str) -> bytes:
    values = torch.frombuffer(bytearray(piece), dtype=_WIDENED[dtype])
    return values.float().numpy().tobytes()
