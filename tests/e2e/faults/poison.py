"""Drafts with something wrong in them that no config shows, and a plugin that makes the scheduler fail on request."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.demo import DemoPair

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"


def poisoned(pair: DemoPair, folder: Path, poison: Callable[[Tensors], None]) -> DemoPair:
    """The pair with a copy of its draft, whose tensors `poison` has changed in place."""
    shutil.copytree(pair.draft, folder)
    tensors = load_file(folder / WEIGHTS)
    poison(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return DemoPair(pair.target, folder)


def permute(tensors: Tensors) -> None:
    """Every shape stays: the layers change places, the Markov head's tokens and the features' rows too."""
    for name in [name for name in tensors if name.startswith("layers.0.")]:
        other = name.replace("layers.0.", "layers.1.")
        tensors[name], tensors[other] = tensors[other], tensors[name]
    tensors["markov_head.markov_w1.weight"] = tensors["markov_head.markov_w1.weight"].roll(1, 0).contiguous()
    tensors["fc.weight"] = tensors["fc.weight"].flip(0).contiguous()


def overflow(tensors: Tensors) -> None:
    """Finite, so it loads; every product with it overflows, and all that the draft computes is NaN."""
    tensors["fc.weight"] = tensors["fc.weight"].sign() * torch.finfo(torch.bfloat16).max


def not_a_number(tensors: Tensors) -> None:
    """One value."""
    tensors["layers.1.mlp.down_proj.weight"][3, 5] = float("nan")


def truncated(pair: DemoPair, folder: Path) -> DemoPair:
    """The pair with a copy of its draft whose download stopped half-way."""
    shutil.copytree(pair.draft, folder)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    return DemoPair(pair.target, folder)


FAILING_REQUEST, FAILURE = "fail-the-scheduler", "injected by the test"
_PLUGIN = f'''
"""Fails the step whose batch holds a certain request."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def run_batch(original, scheduler, batch, *rest, **options):
    if any(req.rid == {FAILING_REQUEST!r} and len(req.output_ids) > 4 for req in batch.reqs):
        raise RuntimeError({FAILURE!r})
    return original(scheduler, batch, *rest, **options)


def register():
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", run_batch, HookType.AROUND)
'''


def failing_plugin(folder: Path) -> Path:
    """A second plugin of SGLang, installed in `folder`: put it on PYTHONPATH."""
    metadata = folder / "failing_scheduler-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: failing-scheduler\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nfailing = failing_scheduler:register\n")
    (folder / "failing_scheduler.py").write_text(_PLUGIN)
    return folder
