"""Every backend of every op, asked with the specs that MiniMax-M3's draft has on 1 and on 8 ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from sglang_dspark.doctor.findings import Case, Finding, ok, problem, warning
from sglang_dspark.doctor.machine import platform_or_none
from sglang_dspark.ops import context_kv, qk_norm_rope
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES
from sglang_dspark.ops.dispatch import AUTO, Op, UnknownBackend
from sglang_dspark.platforms import Platform

# The environment variable that names an op's backend (models/minimax_m3_dspark.py).
VARIABLES = {"context_kv": "SGLANG_DSPARK_CONTEXT_KV", "qk_norm_rope": "SGLANG_DSPARK_QK_NORM_ROPE"}
OPS = (context_kv.OP, qk_norm_rope.OP)
RANKS = (1, 8)
# The plain PyTorch one: right everywhere, and many launches where the others have one.
_SLOW = "torch"


@dataclass(frozen=True)
class Asked:
    """One spec of an op, and its name in the report."""

    name: str
    spec: Any

    def with_layout(self, layout: str) -> Asked:
        """The same on a pool of another layout."""
        return replace(self, spec=replace(self.spec, pool_layout=layout))


def minimax_m3(op: Op, platform: Platform) -> list[Asked]:
    """MiniMax-M3's released drafts: 5 layers, 64 query and 4 KV heads of 128, of which 64 are rotated."""
    asked = []
    for pool, dtype in (("bf16", torch.bfloat16), ("fp8", FP8_DTYPES[platform.fp8_format])):
        for ranks in RANKS:
            shared: dict[str, Any] = {
                "num_kv_heads": max(1, 4 // ranks),
                "head_dim": 128,
                "rotary_dim": 64,
                "is_neox": True,
                "eps": 1e-6,
                "pool_dtype": dtype,
            }
            asked.append(Asked(f"{pool} KV on TP {ranks}", _spec(op, shared, ranks, pool == "fp8")))
    return asked


def _spec(op: Op, shared: dict[str, Any], ranks: int, scaled: bool) -> Any:
    if op.name == context_kv.OP.name:
        scales = (1.0,) * 5 if scaled else None
        return context_kv.ContextKVSpec(5, kv_dtype=torch.bfloat16, k_scales=scales, v_scales=scales, **shared)
    scale = 1.0 if scaled else None
    return qk_norm_rope.QKNormRopeSpec(64 // ranks, qkv_dtype=torch.bfloat16, k_scale=scale, v_scale=scale, **shared)


def check(case: Case) -> Iterator[Finding]:
    """Of each op: what a server would choose, then every backend with its refusals."""
    platform = platform_or_none()
    if platform is None:
        return
    for op in OPS:
        case.progress(f"asking the backends of {op.name}")
        yield from judge(op, platform, case.environment.get(VARIABLES[op.name], AUTO))


def judge(op: Op, platform: Platform, requested: str = AUTO) -> Iterator[Finding]:
    """The findings of one op."""
    asked = minimax_m3(op, platform)
    refused = {
        backend.name: {case.name: tuple(backend.refusals(platform, case.spec)) for case in asked}
        for backend in op.backends
    }
    try:
        offered = platform.backends(op.name) if requested == AUTO else (op.backend(requested).name,)
    except UnknownBackend as error:
        yield problem(op.name, str(error), f"unset {VARIABLES[op.name]}")
        return
    for case in asked:
        yield _choice(op, case.name, offered, refused, requested)
    for backend in op.backends:
        text = _refusals(refused[backend.name])
        shown = "" if backend.name in platform.backends(op.name) else f" (not offered on {platform.name})"
        yield ok(f"{op.name} {backend.name}", f"{text}{shown}")


def _choice(
    op: Op, case: str, offered: tuple[str, ...], refused: Mapping[str, Mapping[str, tuple[str, ...]]], requested: str
) -> Finding:
    open_ones = [name for name in offered if not refused[name][case]]
    reasons = {name: "; ".join(refused[name][case]) for name in offered if refused[name][case]}
    told = " | ".join(f"{name}: {text}" for name, text in reasons.items())
    if not open_ones:
        found = f"no backend for {case} (refused: {told})"
        if requested != AUTO:
            return problem(op.name, found, f"unset {VARIABLES[op.name]}, or name another", asked=requested)
        if case.startswith("fp8"):
            return warning(op.name, found, "serve with a bf16 KV cache, or do what the first of them asks for")
        return problem(op.name, found, "do what the first of them asks for")
    if open_ones[0] == offered[0]:
        return ok(op.name, f"{open_ones[0]} for {case}")
    slow = " (PyTorch, many launches)" if open_ones[0] == _SLOW else ""
    remedy = f"do what {offered[0]} asks for" if slow else f"fine if {open_ones[0]} is what you want"
    return warning(op.name, f"{open_ones[0]}{slow} for {case} (refused: {told})", remedy)


def _refusals(by_case: Mapping[str, tuple[str, ...]]) -> str:
    """The cases with the same refusals together."""
    cases: dict[tuple[str, ...], list[str]] = {}
    for name, reasons in by_case.items():
        cases.setdefault(reasons, []).append(name)
    if len(cases) == 1:
        (reasons,) = cases
        return f"refuses: {'; '.join(reasons)}" if reasons else "covers all of these"
    parts = [
        f"{'refuses' if reasons else 'covers'} {', '.join(names)}{': ' if reasons else ''}{'; '.join(reasons)}"
        for reasons, names in cases.items()
    ]
    return " | ".join(parts)
