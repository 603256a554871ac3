"""A target's outputs and features on disk, memory-mapped, so that a draft trains without running its target again.

A folder with one file a tensor, all sequences equally long, and a manifest with every file's size and digest. It
appears by one rename. Opening one checks all of it: features that were cut short or belong to another target would
train a draft that nobody's tokens please.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch

MANIFEST_NAME = "manifest.json"
FORMAT = 1


class FeatureCacheError(ValueError):
    """A feature cache is damaged, or was made for something else."""


@dataclass(frozen=True)
class CacheFacts:
    """What a draft must agree with."""

    target: str  # the fingerprint of its weights
    target_layer_ids: tuple[int, ...]
    hidden_size: int
    length: int  # tokens a sequence
    recipe: str  # how the sequences were made


@dataclass(frozen=True)
class Batch:
    """Some sequences."""

    tokens: torch.Tensor  # [B, S] int64
    loss_mask: torch.Tensor  # [B, S] float32, 1 where the target itself chose the token
    features: torch.Tensor  # [B, S, K * H] float32
    last_hidden: torch.Tensor  # [B, S, H] float32


def _shapes(facts: CacheFacts) -> dict[str, tuple[torch.dtype, int]]:
    """Each file's dtype and its elements for one sequence."""
    width = facts.length * facts.hidden_size
    return {
        "tokens": (torch.int32, facts.length),
        "loss_mask": (torch.uint8, facts.length),
        # bf16 as the served target computes them; float16 would overflow on the large channels of real models.
        "features": (torch.bfloat16, width * len(facts.target_layer_ids)),
        "last_hidden": (torch.bfloat16, width),
    }


class FeatureCacheWriter:
    """Writes a new cache; `with` block left normally publishes it, an exception leaves nothing."""

    def __init__(self, folder: Path, facts: CacheFacts) -> None:
        if folder.exists():
            raise FeatureCacheError(f"asked for a new feature cache, found something at {folder}: remove it first")
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder, self._facts, self._sequences = folder, facts, 0
        self._work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        self._files: dict[str, BinaryIO] = {name: (self._work / name).open("wb") for name in _shapes(facts)}

    def __enter__(self) -> FeatureCacheWriter:
        return self

    def append(self, **tensors: torch.Tensor) -> None:
        """Add sequences: `tokens`, `loss_mask`, `features` and `last_hidden`, shaped as in `Batch`."""
        count = len(tensors["tokens"])
        for name, (dtype, elements) in _shapes(self._facts).items():
            rows = tensors[name].detach().to(dtype).contiguous()
            if rows.numel() != count * elements:
                raise FeatureCacheError(
                    f"{name}: asked for {elements} elements a sequence, found {list(rows.shape)} for {count} sequences"
                )
            self._files[name].write(rows.view(torch.uint8).numpy().tobytes())
        self._sequences += count

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()
        try:
            if kind is None:
                files = {name: _describe(self._work / name) for name in self._files}
                manifest = {"format": FORMAT, "sequences": self._sequences, **asdict(self._facts), "files": files}
                (self._work / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n")
                self._work.rename(self._folder)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)


class FeatureCache:
    """A finished cache, checked when it is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = _read_manifest(folder)
        self.sequences = int(manifest["sequences"])
        self.facts = CacheFacts(
            **{name: manifest[name] for name in ("target", "hidden_size", "length", "recipe")},
            target_layer_ids=tuple(manifest["target_layer_ids"]),
        )
        problems = []
        for name, (dtype, elements) in _shapes(self.facts).items():
            path, stored = folder / name, manifest["files"].get(name)
            wanted = self.sequences * elements * dtype.itemsize
            found = path.stat().st_size if path.exists() else None
            if stored is None or found != wanted or stored["bytes"] != wanted:
                problems.append(f"{name}: asked for {wanted} bytes, found {found}")
            elif _describe(path) != stored:
                problems.append(f"{name}: its content changed since it was written")
        if problems:
            raise FeatureCacheError(
                f"the feature cache {folder} is damaged; delete it and make it again:\n  - " + "\n  - ".join(problems)
            )
        self._maps = {
            name: torch.from_file(str(folder / name), shared=False, size=self.sequences * elements, dtype=dtype).view(
                self.sequences, self.facts.length, -1
            )
            for name, (dtype, elements) in _shapes(self.facts).items()
        }

    def require(self, facts: CacheFacts) -> None:
        """Refuse a cache that was made for something else.

        Raises:
            FeatureCacheError: with every difference.
        """
        asked, found = asdict(facts), asdict(self.facts)
        problems = [f"{k}: asked for {asked[k]!r}, found {found[k]!r}" for k in asked if asked[k] != found[k]]
        if problems:
            raise FeatureCacheError(
                f"the feature cache {self.folder} was made otherwise; delete it or name another folder:\n  - "
                + "\n  - ".join(problems)
            )

    @property
    def identity(self) -> Mapping[str, str]:
        """Names the content, for a training state."""
        return {"features": hashlib.sha256((self.folder / MANIFEST_NAME).read_bytes()).hexdigest()[:16]}

    def read(self, rows: torch.Tensor) -> Batch:  # rows [B] int64
        """These sequences, in memory."""
        found = {name: mapped[rows] for name, mapped in self._maps.items()}
        return Batch(
            tokens=found["tokens"].squeeze(-1).long(),
            loss_mask=found["loss_mask"].squeeze(-1).float(),
            features=found["features"].float(),
            last_hidden=found["last_hidden"].float(),
        )


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text())
    except (OSError, ValueError) as error:
        raise FeatureCacheError(
            f"asked for a feature cache in {folder}, found no readable manifest ({error})"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FeatureCacheError(
            f"asked for a feature cache of format {FORMAT}, found another in {folder}: make it again"
        )
    return manifest
