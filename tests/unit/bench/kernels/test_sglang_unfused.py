"""SGLang's own modules, one after the other, on the CPU: they do what the law says, within roundings."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets
from sglang_dspark.bench.kernels import agreement, sglang_unfused
from sglang_dspark.bench.kernels.context_kv import BENCH as CONTEXT_KV
from sglang_dspark.bench.kernels.op import Shape, UpstreamMissing
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH as QK_NORM_ROPE

CPU = platforms.describe("cpu", "cpu")
TP1 = presets.PRESETS["m3-tp1"]
BINDERS = {"context_kv": sglang_unfused.bind_context_kv, "qk_norm_rope": sglang_unfused.bind_qk_norm_rope}


def work(bench, dtype=torch.bfloat16, tokens=48):
    return bench.build(Shape(TP1, tokens, dtype), "cpu", num_slots=320, num_positions=64)


@pytest.mark.parametrize("bench", [CONTEXT_KV, QK_NORM_ROPE], ids=lambda bench: bench.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
def test_it_agrees_with_the_law_within_its_share(bench, dtype):
    given = work(bench, dtype)
    by_the_law = lambda *rows: bench.reference(given.spec, given.tables, *rows)  # noqa: E731
    calls = {"law": by_the_law, "unfused": BINDERS[bench.name](CPU, given.spec, given.tables)}
    share = sglang_unfused.differing_share(CPU, given.shape)
    assert agreement.disagreement(bench, given, calls, {"unfused": share}) == {}
    # The same inputs again: what it scaled in place was put back.
    assert agreement.disagreement(bench, given, calls, {"unfused": share}) == {}


def test_it_is_held_to_what_it_stores():
    """Another layer's weights show, or the comparison would mean nothing."""
    given = work(CONTEXT_KV)
    call = sglang_unfused.bind_context_kv(CPU, given.spec, given.tables)
    given.tables.norm_multipliers.copy_(given.tables.norm_multipliers.roll(1, 0))
    calls = {"torch": CONTEXT_KV.bind(CPU, given, "torch"), "unfused": call}
    assert "elements differ" in agreement.disagreement(CONTEXT_KV, given, calls, {"unfused": 0.3})["unfused"]


def test_a_missing_module_is_said(monkeypatch):
    monkeypatch.setattr(sglang_unfused, "NORM", ("sglang.no_such_module", "Norm"))
    given = work(QK_NORM_ROPE, tokens=1)
    with pytest.raises(UpstreamMissing, match="sglang.no_such_module.Norm of SGLang"):
        sglang_unfused.bind_qk_norm_rope(CPU, given.spec, given.tables)
