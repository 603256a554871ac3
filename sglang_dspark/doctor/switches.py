"""SGLang's environment switches that decide how, or whether, a MiniMax-M3 draft is served.

Names and defaults are those of `sglang.srt.environ` in SGLang 0.5.23; a test compares them. What a KV layout means for
our ops is asked of the ops themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sglang_dspark.doctor import backends
from sglang_dspark.doctor.findings import Case, Finding, ok, problem, warning
from sglang_dspark.doctor.machine import platform_or_none
from sglang_dspark.platforms import Platform
from sglang_dspark.serving import verify_support

_TRUE, _FALSE = ("true", "1", "yes", "y"), ("false", "0", "no", "n")
_VERIFY_MODES = ("static", "cap-accept", "compact")  # sglang.srt.speculative.ragged_verify:RaggedVerifyMode
_AITER_LAYOUTS = ("nhd", "vectorized_5d")


class Unreadable(ValueError):
    """A value that SGLang cannot read either."""


class Values:
    """The switches as SGLang would read them: the environment, and its defaults below."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str:
        """A switch as it is written."""
        return self._environment.get(name, DEFAULTS[name])

    def on(self, name: str) -> bool:
        """A switch that is true or false.

        Raises:
            Unreadable: it is neither.
        """
        value = self.text(name).lower()
        if value not in _TRUE + _FALSE:
            raise Unreadable(f"{self.text(name)!r}, which is neither true nor false")
        return value in _TRUE


@dataclass(frozen=True)
class Switch:
    """A switch, SGLang's default, and what its value means on a platform; None where it has no part."""

    name: str
    default: str
    judge: Callable[[Platform, Values], Finding | None]


def _use_aiter(platform: Platform, values: Values) -> Finding | None:
    name = "SGLANG_USE_AITER"
    if platform.name != "amd":
        return None
    if values.on(name):
        return ok(name, "1, so SGLang's attention and experts use AITER")
    remedy = f"export {name}=1, as SGLang's ROCm images do"
    return warning(name, "0, so SGLang's attention and experts use slower kernels", remedy)


def _hnd_pool(platform: Platform, values: Values) -> Finding | None:
    name = "SGLANG_USE_HND_KVCACHE"
    return _layout(name, "hnd", platform) if values.on(name) else ok(name, "0, the layout is not hnd")


def _aiter_layout(platform: Platform, values: Values) -> Finding | None:
    name = "SGLANG_AITER_KV_CACHE_LAYOUT"
    # SGLang reads it with AITER alone, and the other layout switch goes before it.
    if platform.name != "amd" or not values.on("SGLANG_USE_AITER") or values.on("SGLANG_USE_HND_KVCACHE"):
        return None
    layout = values.text(name).lower()
    if layout not in _AITER_LAYOUTS:
        return problem(name, layout, "unset it: SGLang ends on others", asked=" or ".join(_AITER_LAYOUTS))
    return _layout(name, layout, platform)


def _layout(name: str, layout: str, platform: Platform) -> Finding:
    for op in backends.OPS:
        spec = backends.minimax_m3(op, platform)[0].with_layout(layout).spec
        if all(op.backend(backend).refusals(platform, spec) for backend in platform.backends(op.name)):
            found = f"a KV pool of layout {layout}, which every backend of {op.name} refuses"
            return problem(name, found, f"unset {name}: layout nhd is covered")
    return ok(name, f"a KV pool of layout {layout}")


def _verify_mode(platform: Platform, values: Values) -> Finding | None:
    name = "SGLANG_RAGGED_VERIFY_MODE"
    mode = values.text(name)
    if mode not in _VERIFY_MODES:
        return problem(name, mode, f"unset {name}: SGLang ends on others", asked=" or ".join(_VERIFY_MODES))
    reason = verify_support.refusal(platform, sparse=True, native_nvfp4=False, verify_mode=mode)
    if reason is None:
        return ok(name, mode)
    if platform.name == "amd":
        return problem(name, reason, f"export {name}={verify_support.STATIC}")
    return warning(name, f"{mode}; {reason}", "nothing to do with an NVFP4 checkpoint on Blackwell")


def _fp8_lm_head(platform: Platform, values: Values) -> Finding | None:
    name = "SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD"
    if not values.on(name):
        return ok(name, "0, the target's LM head stays as it is stored") if platform.name == "amd" else None
    if platform.name != "amd":
        return warning(name, f"1, without effect on {platform.name}", "unset it")
    if platform.fp8_format == "e4m3fnuz":
        return warning(name, f"1; SGLang ignores it on {platform.arch}, where it costs accuracy", "unset it")
    return warning(
        name,
        "1: the target's logits are computed in fp8, so answers differ from those without speculation",
        "unset it where they must be the same",
    )


def _fused_qk_norm(platform: Platform, values: Values) -> Finding | None:
    name = "SGLANG_M3_USE_AITER_FUSED_QKNORM"
    if platform.name != "amd" or not values.on("SGLANG_USE_AITER"):
        return None
    return ok(name, f"{int(values.on(name))}: the target's QK norm and KV insert through AITER, where it has them")


SWITCHES = (
    Switch("SGLANG_USE_AITER", "false", _use_aiter),
    Switch("SGLANG_USE_HND_KVCACHE", "false", _hnd_pool),
    Switch("SGLANG_AITER_KV_CACHE_LAYOUT", "nhd", _aiter_layout),
    Switch("SGLANG_RAGGED_VERIFY_MODE", "static", _verify_mode),
    Switch("SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD", "false", _fp8_lm_head),
    Switch("SGLANG_M3_USE_AITER_FUSED_QKNORM", "true", _fused_qk_norm),
)
DEFAULTS = {switch.name: switch.default for switch in SWITCHES}


def check(case: Case) -> Iterator[Finding]:
    """Every switch that has a part on this platform."""
    if platform := platform_or_none():
        yield from judge(platform, case.environment)


def judge(platform: Platform, environment: Mapping[str, str]) -> Iterator[Finding]:
    """The same, for a given platform and environment."""
    values = Values(environment)
    for switch in SWITCHES:
        try:
            finding = switch.judge(platform, values)
        except Unreadable as error:
            finding = problem(switch.name, str(error), "set it to 1 or 0, or unset it")
        if finding is not None:
            yield finding
