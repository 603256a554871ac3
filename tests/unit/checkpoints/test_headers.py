"""The reader of safetensors headers: what the library accepts is read the same, what is damaged is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sglang_dspark.checkpoints.headers import BITS, WRITING_ORDER, DamagedFile, make_header, read_header

TENSORS = {
    "b": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "a": torch.arange(4, dtype=torch.float32),
    'é"x': torch.ones(3, dtype=torch.float16),
    "empty": torch.zeros(0, 4),
    "one": torch.tensor(1.5),
    "f8": torch.zeros(3, dtype=torch.float8_e4m3fn),
    "u8": torch.arange(5, dtype=torch.uint8),
    "i64": torch.arange(2),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    return tmp_path / "x.safetensors"


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: object, offsets: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_every_tensor_is_where_the_header_says(file: Path) -> None:
    """Off by the header's length, every tensor is another one's bytes."""
    header = read_header(file)
    content = file.read_bytes()
    assert header.metadata == {"format": "pt"}
    assert header.tensors.keys() == TENSORS.keys()
    for name, stored in header.tensors.items():
        expected = bytes(TENSORS[name].contiguous().view(-1).view(torch.uint8).tolist())
        assert content[stored.start : stored.start + stored.size_bytes] == expected
        assert stored.shape == tuple(TENSORS[name].shape)


def test_every_dtype_has_the_librarys_size() -> None:
    """A dtype that is unknown here could not be converted; one of another size would shift every tensor behind it."""
    for dtype, bits in (("F4", 4), ("F8_E4M3", 8), ("BF16", 16), ("F32", 32), ("I64", 64), ("F8_E8M0", 8), ("BOOL", 8)):
        assert BITS[dtype] == bits


def test_a_header_is_written_as_the_library_writes_it(file: Path) -> None:
    """A converted checkpoint can then be compared with the original by its hash."""
    header = read_header(file)
    in_order = sorted(header.tensors.items(), key=lambda item: (WRITING_ORDER[item[1].dtype], item[0]))
    made = make_header([(name, t.dtype, t.shape, t.size_bytes) for name, t in in_order], header.metadata)
    assert file.read_bytes()[: len(made)] == made


@pytest.mark.parametrize("seed", range(3))
def test_a_file_cut_anywhere_is_damaged(file: Path, tmp_path: Path, seed: int) -> None:
    """An interrupted copy: whatever remains must not be read as a smaller checkpoint."""
    content = file.read_bytes()
    for length in {0, 1, 7, 8, 9, len(content) - 1, *random.Random(seed).sample(range(len(content)), 60)}:
        (tmp_path / "cut.safetensors").write_bytes(content[:length])
        with pytest.raises(DamagedFile):
            read_header(tmp_path / "cut.safetensors")


def test_bytes_behind_the_end_are_damage(file: Path) -> None:
    """A file that was overwritten by a shorter one keeps the old one's end."""
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(DamagedFile, match="its tensors end at"):
        read_header(file)


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_header_is_refused_or_read_as_the_library_reads_it(file: Path, tmp_path: Path, seed: int) -> None:
    """One flipped bit: never a place outside the file, never a file that the library refuses."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    pick = random.Random(seed)
    refused = 0
    for _ in range(150):
        changed = bytearray(content)
        changed[pick.randrange(end)] ^= 1 << pick.randrange(8)
        path = tmp_path / "changed.safetensors"
        path.write_bytes(changed)
        try:
            header = read_header(path)
        except DamagedFile:
            refused += 1
            continue
        for stored in header.tensors.values():
            assert end - 8 <= stored.start and stored.start + stored.size_bytes <= len(content)
        try:
            with safe_open(path, framework="pt") as library:
                assert set(library.keys()) == header.tensors.keys()
        except SafetensorError as error:
            # Its JSON reader asks for more (no NaN, no control characters), never for another place of a tensor.
            assert "InvalidHeaderDeserialization" in str(error) or "JSON" in str(error), error
    assert refused > 75


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"{", b"", "no JSON"),
        (b"\xff\xfe", b"", "no JSON"),
        (b"[" * 100_000, b"", "no JSON"),
        (b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{}}', b"1234", "twice"),
        ([1], b"", "not a JSON object"),
        ({"a": 3}, b"", "unknown dtype"),
        ({"a": entry([1], [0, 4], "F31")}, b"1234", "unknown dtype 'F31'"),
        ({"a": entry([1], [0, 4], ["F32"])}, b"1234", "unknown dtype"),
        ({"a": entry([-1], [0, 4])}, b"1234", "no shape or no place"),
        ({"a": entry([True], [0, 4])}, b"1234", "no shape or no place"),
        ({"a": entry([1.0], [0, 4])}, b"1234", "no shape or no place"),
        ({"a": entry(None, [0, 4])}, b"1234", "no shape or no place"),
        ({"a": entry([1], [0])}, b"1234", "no shape or no place"),
        ({"a": entry([1], [0, 4, 4])}, b"1234", "no shape or no place"),
        ({"a": entry([1], [4, 0])}, b"1234", "does not take the -4 bytes"),
        ({"a": entry([2], [0, 4])}, b"1234", "does not take the 4 bytes"),
        ({"a": entry([1 << 62, 4], [0, 0])}, b"", "does not take the 0 bytes"),
        ({"a": entry([1], [4, 8])}, b"12345678", "starts at byte"),
        ({"a": entry([1], [0, 4]), "b": entry([1], [0, 4])}, b"1234", "starts at byte"),
        ({"a": entry([1], [0, 4])}, b"123", "its tensors end at"),
        ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
        ({"__metadata__": []}, b"", "__metadata__"),
    ],
)
def test_what_is_refused(tmp_path: Path, header: object, data: bytes, said: str) -> None:
    with pytest.raises(DamagedFile, match=said):
        read_header(raw(tmp_path / "x.safetensors", header, data))


def test_a_header_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    """A length from the network must not decide how much is allocated."""
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    with pytest.raises(DamagedFile, match="header should end at"):
        read_header(path)
