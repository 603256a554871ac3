"""Builds a demo pair in a folder, or keeps one in the user's cache.

A served model is worth trying only if its draft is accepted now and then and refused now and then; random weights give
neither. So people get the pair that was trained (`trained.SPEC`), and tests the constructed ones (every other spec).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file

from sglang_dspark.demo import trained
from sglang_dspark.demo.draft import draft_tensors
from sglang_dspark.demo.layouts import draft_checkpoint
from sglang_dspark.demo.spec import DemoSpec
from sglang_dspark.demo.target import Tensors, target_config, target_tensors
from sglang_dspark.demo.tokenizer import make_tokenizer, write_tokenizer
from sglang_dspark.demo.transitions import transition_weights

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DemoPair:
    """Where the two checkpoints are."""

    target: Path
    draft: Path


def build(folder: Path, *, layout: str = "automodel", spec: DemoSpec | None = None) -> DemoPair:
    """Write a target and its draft below `folder`, the same bytes every time, and say where they are."""
    spec = spec or DemoSpec.text()
    pair = DemoPair(folder / "target", folder / "draft")
    tokenizer, target, draft = _weights(spec)
    config = target_config(spec)
    draft_config, draft_named = draft_checkpoint(layout, spec, config, target, draft)
    _write_checkpoint(pair.target, config, target)
    _write_checkpoint(pair.draft, draft_config, draft_named)
    for checkpoint in (pair.target, pair.draft):
        write_tokenizer(checkpoint, spec, tokenizer)
    return pair


def _weights(spec: DemoSpec) -> tuple[tokenizers.Tokenizer, Tensors, Tensors]:
    if spec.name == trained.SPEC.name:
        published = trained.read(spec)
        return published.tokenizer, published.target, published.draft
    tokenizer = make_tokenizer(spec)
    table = transition_weights(spec, tokenizer)
    if spec.tie_word_embeddings:
        table = torch.eye(spec.vocab_size, dtype=table.dtype)
    return tokenizer, target_tensors(spec, table), draft_tensors(spec, table)


def ensure(cache: Path | None = None, *, layout: str = "automodel", spec: DemoSpec | None = None) -> DemoPair:
    """The pair in the cache, the trained one by default, built first if it is not there or not whole.

    `cache` defaults to $XDG_CACHE_HOME/sglang-dspark, or ~/.cache/sglang-dspark. The folder's name carries a hash of
    everything the pair is made from. A finished pair appears by one rename, so no process ever sees half of one.
    """
    spec = spec or trained.SPEC
    cache = cache or _default_cache()
    final = cache / f"demo-{_content_version(layout, spec)}"
    cache.mkdir(parents=True, exist_ok=True)
    if not _is_whole(final):
        with _lock(cache / "demo.lock"):
            if not _is_whole(final):
                _publish(cache, final, layout, spec)
    return DemoPair(final / "target", final / "draft")


def _publish(cache: Path, final: Path, layout: str, spec: DemoSpec) -> None:
    work = Path(tempfile.mkdtemp(prefix=".demo-", dir=cache))
    try:
        fresh = work / "pair"
        build(fresh, layout=layout, spec=spec)
        (fresh / MANIFEST).write_text(json.dumps(_digests(fresh), indent=2, sort_keys=True) + "\n")
        if final.exists():
            final.rename(work / "broken")
        fresh.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_checkpoint(folder: Path, config: dict[str, object], tensors: Tensors) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    contiguous = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})


def _content_version(layout: str, spec: DemoSpec) -> str:
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    weights = repr(trained.digests()) if spec.name == trained.SPEC.name else ""
    return hashlib.sha256(sources + repr((layout, spec, weights)).encode()).hexdigest()[:16]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _is_whole(folder: Path) -> bool:
    try:
        recorded = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return bool(recorded) and recorded == _digests(folder)


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sglang-dspark"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with its process, so a killed one leaves none behind."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
