"""A target and its draft, where they are given: the lint of `convert --check`, and the memory they ask for.

The memory is arithmetic from the files' headers. What a server needs beside it (activations, graphs, the KV pools) is
SGLang's to divide; `--mem-fraction-static` says how.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_dspark.checkpoints.config import parse_draft_config
from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.files import read_config, read_tensors
from sglang_dspark.checkpoints.lint import Level, lint
from sglang_dspark.checkpoints.target import read_target
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET
from sglang_dspark.doctor.findings import Case, Finding, ok, problem, warning
from sglang_dspark.doctor.machine import platform_or_none

# The share of a device that SGLang gives to weights and KV pools together by default is about this.
USABLE = 0.9
_LINT_REMEDY = "docs/convert.md says what each line of this check means"


@dataclass(frozen=True)
class Sizes:
    """Bytes of a pair of checkpoints over all ranks, and how much KV the draft keeps of one token."""

    target_bytes: int
    draft_bytes: int
    draft_kv_heads: int
    draft_kv_values_per_token: int


def check(case: Case) -> Iterator[Finding]:
    """The lint."""
    if case.target is None or case.draft is None:
        return
    case.progress("reading the checkpoints' headers")
    for finding in lint(case.draft, case.target):
        if finding.level is Level.OK:
            yield ok(finding.subject, finding.text)
        else:
            yield Finding(finding.level, finding.subject, finding.text, remedy=_LINT_REMEDY)


def check_memory(case: Case) -> Iterator[Finding]:
    """The bytes of both, and whether this machine holds them."""
    if case.target is None or case.draft is None:
        return
    try:
        sizes = measure(case.target, case.draft)
    except CheckpointError as error:
        yield problem("sizes", "; ".join(error.problems), "the sizes are read once that is done")
        return
    yield from judge(sizes, *_this_machine())


def measure(target: Path, draft: Path) -> Sizes:
    """The sizes, from the headers of every file.

    Raises:
        CheckpointError: one of the two cannot be read.
    """
    read_target(target)
    config = parse_draft_config(read_config(draft), str(draft))
    own = {name: t for name, t in read_tensors(draft).tensors.items() if name not in SHARED_WITH_TARGET}
    return Sizes(
        sum(tensor.size_bytes for tensor in read_tensors(target, "target").tensors.values()),
        sum(tensor.size_bytes for tensor in own.values()),
        config.num_key_value_heads,
        config.num_layers * 2 * config.num_key_value_heads * config.head_dim,
    )


def judge(sizes: Sizes, where: str, devices: int, device_bytes: int) -> Iterator[Finding]:
    """Findings for so many devices of so many bytes each."""
    yield ok("target weights", _gb(sizes.target_bytes))
    yield ok("draft weights", f"{_gb(sizes.draft_bytes)}, without the embedding and LM head it shares with the target")
    values = sizes.draft_kv_values_per_token
    yield ok(
        "draft KV",
        f"{2 * values:,} bytes a token in bf16, {values:,} in fp8, divided by up to {sizes.draft_kv_heads} ranks",
    )
    needed, usable = sizes.target_bytes + sizes.draft_bytes, int(devices * device_bytes * USABLE)
    have = f"{devices} {where} of {_gb(device_bytes)}"
    if needed > usable:
        yield problem(
            "room",
            f"{_gb(needed)} of weights and {have}",
            "use more or larger devices, or a checkpoint with fewer bits",
            asked=f"weights within {USABLE:.0%} of all devices ({_gb(usable)})",
        )
    elif needed > usable // 2:
        remedy = "expect few concurrent requests or short contexts, and lower --context-length or use an fp8 KV cache"
        yield warning("room", f"{_gb(needed)} of weights on {have}: {_gb(usable - needed)} left for KV", remedy)
    else:
        yield ok("room", f"{_gb(needed)} of weights on {have}: {_gb(usable - needed)} left for KV and the rest")


def _this_machine() -> tuple[str, int, int]:
    """What the weights must fit into: the kind of device, how many, and the bytes of the smallest."""
    platform = platform_or_none()
    if platform is None or platform.device_type == "cpu":
        return "host", 1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = torch.cuda.device_count()
    return "GPUs", count, min(torch.cuda.get_device_properties(i).total_memory for i in range(count))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes:,} bytes"
