"""One damaged draft from a number: which draft, which file, what was done to it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from sglang_dspark.checkpoints.files import INDEX_NAME
from sglang_dspark.checkpoints.headers import BITS

from .drafts import KEYS, Original
from .mutations import made, mutate, mutate_bytes, text_of

FIELDS = ("dtype", "shape", "data_offsets", "__metadata__", "fc.weight", "norm.weight", "format", "extra")
NAMES = ("../secret.safetensors", "/etc/passwd", "..", ".", "", "x.bin", "a/b.safetensors", "no.safetensors",
         "model\x00.safetensors", "\udcff.safetensors", "\ud800.safetensors", "config.json", "x" * 300 + ".safetensors",
         "..\\x.safetensors", "./model.safetensors", "MODEL.safetensors")  # fmt: skip


def damage(original: Original, folder: Path, pick: Random) -> str:
    """Make a damaged copy of a draft; what was done. Files that stay as they were are links to the original's."""
    folder.mkdir()
    for path in original.files():
        os.link(path, folder / path.name)
    ways: list[Callable[[Original, Path, Random], str]] = [_config, _config, _config_text, _header, _header_text, _file]
    if original.sharded:
        ways += [_index, _index_text]
    way = pick.choice(ways)
    return f"{original.name}{way.__name__}: {way(original, folder, pick)}"


def _config(original: Original, folder: Path, pick: Random) -> str:
    document, done = json.loads((original.draft / "config.json").read_text()), []
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        document, what = mutate(document, pick, KEYS)
        done.append(what)
    _write(folder / "config.json", text_of(document, pick))
    return "; ".join(done)


def _config_text(original: Original, folder: Path, pick: Random) -> str:
    data, done = mutate_bytes((original.draft / "config.json").read_bytes(), pick)
    _write(folder / "config.json", data)
    return done


def _header(original: Original, folder: Path, pick: Random) -> str:
    path = pick.choice([path for path in original.files() if path.suffix == ".safetensors"])
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header, done = json.loads(whole[8:end]), []
    for _ in range(pick.choice((1, 1, 2))):
        header, what = _lie(header, pick) if pick.random() < 0.4 else mutate(header, pick, FIELDS)
        done.append(what)
    text = text_of(header, pick)
    length = (
        len(text) if pick.random() < 0.9 else pick.choice((0, 1, len(text) - 1, len(text) + 1, 2**31, 2**63, 2**64 - 1))
    )
    _write(folder / path.name, length.to_bytes(8, "little") + text + whole[end:])
    return f"{path.name} length {length}, " + "; ".join(done)


def _lie(header: dict, pick: Random) -> tuple[dict, str]:
    """Offsets, shapes and dtypes that are well formed and wrong."""
    tensors = [name for name in header if isinstance(header[name], dict) and name != "__metadata__"]
    if not tensors:
        return header, "nothing to lie about"
    name, other = pick.choice(tensors), pick.choice(tensors)
    kind = pick.choice(("offsets", "overlap", "dtype", "shape", "empty", "swap", "gap"))
    entry, there = header[name], header[other]
    if kind == "offsets":
        entry["data_offsets"] = [made(pick, offset) for offset in entry.get("data_offsets", [0, 0])]
    elif kind == "overlap":
        entry["data_offsets"] = there.get("data_offsets")
    elif kind == "dtype":
        entry["dtype"] = pick.choice((*BITS, "F31", "bf16", "", "F8_E9M9"))
    elif kind == "shape":
        entry["shape"] = pick.choice(
            ([], [0], [1] * 70, [2**40, 2**40], [2**62] * 2000, [-1, -1], list(reversed(entry.get("shape", []))))
        )
    elif kind == "empty":
        header[f"{name}.more"] = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    elif kind == "swap":
        header[name], header[other] = there, entry
    elif kind == "gap":
        entry["data_offsets"] = [offset + 2 for offset in entry.get("data_offsets", [0, 0]) if isinstance(offset, int)]
    return header, f"{kind} of {name}"


def _header_text(original: Original, folder: Path, pick: Random) -> str:
    path = pick.choice([path for path in original.files() if path.suffix == ".safetensors"])
    whole = path.read_bytes()
    data, done = mutate_bytes(whole, pick, within=8 + int.from_bytes(whole[:8], "little"))
    _write(folder / path.name, data)
    return f"{path.name}: {done}"


def _index(original: Original, folder: Path, pick: Random) -> str:
    index = json.loads((original.draft / INDEX_NAME).read_text())
    if pick.random() < 0.5:
        key = pick.choice(list(index["weight_map"]))
        index["weight_map"][key] = pick.choice(NAMES)
        done = f"{key} in {index['weight_map'][key]!r}"
    else:
        index, done = mutate(index, pick, ("weight_map", "metadata", "fc.weight", "total_size"))
    _write(folder / INDEX_NAME, text_of(index, pick))
    return done


def _index_text(original: Original, folder: Path, pick: Random) -> str:
    data, done = mutate_bytes((original.draft / INDEX_NAME).read_bytes(), pick)
    _write(folder / INDEX_NAME, data)
    return done


def _file(original: Original, folder: Path, pick: Random) -> str:
    """A file missing, empty, cut, too long, a pipe, a folder, a loop of links, or pickles in its place."""
    name = pick.choice([path.name for path in original.files() if path.name != "tokenizer.json"])
    path = folder / name
    kind = pick.choice(("missing", "empty", "cut", "longer", "pipe", "folder", "loop", "dangling", "device", "pickle"))
    whole = path.read_bytes()
    path.unlink()
    if kind == "cut":
        path.write_bytes(whole[: pick.randrange(len(whole))])
    elif kind == "longer":
        path.write_bytes(whole + bytes(pick.choice((1, 2, 100))))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("../nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pickle":
        (folder / "pytorch_model.bin").write_bytes(whole)
    return f"{name} {kind}"


def _write(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)
