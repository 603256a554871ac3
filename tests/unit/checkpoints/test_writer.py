"""Files written from other files' bytes: the same bytes, in shards, without a tensor in memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints import files, writer
from sglang_dspark.checkpoints.writer import Placement, shards, write_json, write_tensors

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8, torch.int64, torch.bool)


def stored(
    folder: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> files.StoredTensors:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    return files.read_tensors(folder)


def placements(found: files.StoredTensors) -> list[Placement]:
    return [Placement(name, tensor) for name, tensor in found.tensors.items()]


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = {str(dtype): torch.randint(0, 2, (5, 7), generator=generator).to(dtype) for dtype in DTYPES}
    bits = torch.randint(0, 256, (16,), generator=generator, dtype=torch.uint8)
    return made | {"every bit": bits.view(torch.float32), "empty": torch.zeros(0, 3), "one": torch.tensor(2.0)}


def test_one_file_is_the_librarys_own_byte_for_byte(tmp_path: Path) -> None:
    """NaNs with a payload among them: a copy through a float would lose it."""
    found = stored(tmp_path / "from", tensors(), {"format": "pt"})
    (tmp_path / "to").mkdir()
    write_tensors(tmp_path / "to", placements(found)[::-1], found.metadata, 10**9)
    assert (tmp_path / "to/model.safetensors").read_bytes() == (tmp_path / "from/model.safetensors").read_bytes()


def test_without_metadata_too(tmp_path: Path) -> None:
    found = stored(tmp_path / "from", tensors())
    (tmp_path / "to").mkdir()
    write_tensors(tmp_path / "to", placements(found), found.metadata, 10**9)
    assert (tmp_path / "to/model.safetensors").read_bytes() == (tmp_path / "from/model.safetensors").read_bytes()


def test_pieces_are_put_together(tmp_path: Path, monkeypatch) -> None:
    """A piece lost or repeated where a tensor is no whole number of them."""
    monkeypatch.setattr(writer, "PIECE_BYTES", 8)
    found = stored(tmp_path / "from", tensors(), {"format": "pt"})
    (tmp_path / "to").mkdir()
    counted: list[int] = []
    write_tensors(tmp_path / "to", placements(found), found.metadata, 10**9, counted.append)
    assert (tmp_path / "to/model.safetensors").read_bytes() == (tmp_path / "from/model.safetensors").read_bytes()
    assert sum(counted) == sum(tensor.size_bytes for tensor in found.tensors.values()) and max(counted) == 8


def test_shards_and_their_index(tmp_path: Path) -> None:
    """Every tensor in exactly one file, and the index as transformers writes it."""
    made = {f"t{i}": torch.full((10,), float(i)) for i in range(7)} | {"big": torch.zeros(100)}
    found = stored(tmp_path / "from", made, {"format": "pt"})
    to = tmp_path / "to"
    to.mkdir()
    write_tensors(to, placements(found), found.metadata, 100)
    names = sorted(path.name for path in to.glob("*.safetensors"))
    assert {path.name for path in to.iterdir()} == {*names, files.INDEX_NAME}
    index = json.loads((to / files.INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.size_bytes for tensor in found.tensors.values())
    assert index["weight_map"].keys() == made.keys() and set(index["weight_map"].values()) == set(names)
    for name in names:
        assert name.endswith(f"-of-{len(names):05}.safetensors")
        for key, tensor in load_file(to / name).items():
            assert index["weight_map"][key] == name and torch.equal(tensor, made[key])
    assert files.read_tensors(to).tensors.keys() == made.keys()


def test_no_shard_is_above_the_limit_unless_one_tensor_is(tmp_path: Path) -> None:
    found = stored(tmp_path / "from", {f"t{i}": torch.zeros(10) for i in range(7)} | {"big": torch.zeros(100)})
    made = shards(placements(found), 80)
    assert sorted(p.name for shard in made for p in shard) == sorted(found.tensors)
    sizes = [sum(p.size_bytes for p in shard) for shard in made]
    assert all(size <= 80 or len(shard) == 1 for size, shard in zip(sizes, made, strict=True))
    assert sizes.count(80) == 3  # 80 holds exactly two: the limit itself is allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_widening_is_exact(tmp_path: Path, monkeypatch, dtype: torch.dtype) -> None:
    """Every 16-bit number, infinities and subnormals too."""
    monkeypatch.setattr(writer, "PIECE_BYTES", 4096)
    narrow = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).view(256, 256)
    found = stored(tmp_path / "from", {"table": narrow})
    (tmp_path / "to").mkdir()
    write_tensors(tmp_path / "to", [Placement("table", found.tensors["table"], widen=True)], {}, 10**9)
    wide = load_file(tmp_path / "to/model.safetensors")["table"]
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide, narrow.float(), rtol=0, atol=0, equal_nan=True)
    back = wide.to(dtype)
    torch.testing.assert_close(back, narrow, rtol=0, atol=0, equal_nan=True)


def test_a_source_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    """Its end would be missing and the header would not say so."""
    found = stored(tmp_path / "from", {"a": torch.zeros(100)})
    path = tmp_path / "from/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "to").mkdir()
    with pytest.raises(OSError, match="ended early"):
        write_tensors(tmp_path / "to", placements(found), {}, 10**9)


@pytest.mark.parametrize("widen", [False, True])
def test_no_tensor_is_ever_in_memory(tmp_path: Path, monkeypatch, widen: bool) -> None:
    """The real draft is 10 GB and its tables 2.5 GB each; a machine that converts it may have less."""
    assert writer.PIECE_BYTES <= 64 << 20
    monkeypatch.setattr(writer, "PIECE_BYTES", 1 << 16)
    size = 8 << 20
    found = stored(tmp_path / "from", {f"t{i}": torch.zeros(size // 2, dtype=torch.bfloat16) for i in range(3)})
    (tmp_path / "to").mkdir()
    chosen = [Placement(name, tensor, widen) for name, tensor in found.tensors.items()]
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "to", chosen, {}, 10**9)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 8
    assert (tmp_path / "to/model.safetensors").stat().st_size > 3 * size * (2 if widen else 1)


def test_json_as_transformers_writes_it(tmp_path: Path) -> None:
    """A config that comes back must be the same file, not only the same table."""
    from transformers import PretrainedConfig

    config = PretrainedConfig(b=[1, 2], a={"z": None, "é": "ü"}, eps=1e-6)
    write_json(tmp_path / "config.json", json.loads(config.to_json_string(use_diff=False)))
    assert (tmp_path / "config.json").read_text() == config.to_json_string(use_diff=False)
