"""AITER, on AMD: its version, and each function that a backend of ours would call."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from sglang_dspark.doctor.findings import Case, Finding, ok, warning
from sglang_dspark.doctor.machine import platform_or_none
from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.aiter.signatures import Unusable
from sglang_dspark.ops.context_kv import aiter_candidates
from sglang_dspark.ops.qk_norm_rope import aiter_backend

WANTED = (
    aiter_candidates.MROPE,
    aiter_candidates.QKNORM,
    aiter_candidates.NORM,
    aiter_candidates.ROPE,
    aiter_candidates.STORE,
    aiter_backend.FUSED,
)
# The distributions that bring the package: wheels, and a checkout as ROCm images install it.
DISTRIBUTIONS = ("amd-aiter", "aiter")
_OTHERS_DO = "nothing to do unless you want the aiter backend; hip and triton stand before it"


def check(case: Case) -> Iterator[Finding]:
    """Nothing where AITER has no part: it runs on AMD GPUs alone."""
    platform = platform_or_none()
    if platform is not None and platform.name == "amd":
        case.progress("importing AITER")
        yield from judge()


def judge() -> Iterator[Finding]:
    """The version, and every function with what is wrong with it."""
    try:
        signatures.load("aiter")
    except Unusable as unusable:
        yield warning("AITER", str(unusable), "use SGLang's ROCm image, whose attention needs it too")
        return
    yield ok("version", _version())
    for wanted in WANTED:
        try:
            signatures.find(wanted)
        except Unusable as unusable:
            yield warning(wanted.name, str(unusable), _OTHERS_DO)
        else:
            yield ok(wanted.name, "there, with every parameter that is passed")


def _version() -> str:
    for name in DISTRIBUTIONS:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "not told by any installed distribution"
