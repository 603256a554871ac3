"""The draft's part of a round, counted by hand for the tiny draft, and what our ops change."""

from __future__ import annotations

import pytest

from sglang_dspark.bench.kernels import context_kv
from sglang_dspark.bench.kernels.op import Shape
from sglang_dspark.bench.presets import PRESETS
from sglang_dspark.bench.step_model import draft_stages
from sglang_dspark.bench.step_model.draft_stages import OURS, SGLANG, beside_target
from sglang_dspark.bench.step_model.sizes import MINIMAX_M3, MINIMAX_M3_DRAFT

from .tiny import case, named


def test_a_round_by_hand():
    """2 requests: 8 verified rows, 6 rows of blocks. K and V of a layer are 2 x 2 heads of 8 = 32 columns."""
    found = named(beside_target(case(), OURS))
    assert found["features to hidden (fc)"] == (1, 32 * 16 * 2 + 8 * (32 + 16) * 2, 2 * 8 * 32 * 16)
    assert found["K/V projection"] == (1, 16 * 64 * 2 + 8 * (16 + 64) * 2, 2 * 8 * 16 * 64)
    # 2 layers of 32 values, 2 bytes in and 2 out; half of 8 dimensions' cos and sin in fp32; position and slot.
    assert found["context K/V write"] == (1, 8 * (2 * 32 * 4 + 4 * 4 + 16), 0)
    # The block sees the context's 10 tokens and its own 3, in both layers.
    assert found["attention"] == (4, 2 * (2 * 13 * 2 * 2 * 8 * 2), 2 * (4 * 6 * 13 * 4 * 8))
    # Four launches a token; W2 of 64 x 4, and three passes over 64 logits of each request.
    assert found["Markov steps"] == (12, 3 * (64 * 4 * 2 + 2 * 64 * 3 * 2), 3 * 2 * 2 * 64 * 4)
    assert found["norms"][0] == 5


def test_with_bf16_pools_the_query_op_is_what_differs():
    ours, sglang = (beside_target(case(), path) for path in (OURS, SGLANG))
    different = {a.name for a, b in zip(ours, sglang, strict=True) if a.launches != b.launches}
    assert different == {"q/k norm, rope, KV store"}
    # One launch fewer a layer.
    assert sum(stage.launches for stage in sglang) - sum(stage.launches for stage in ours) == 2


def test_with_fp8_pools_sglang_writes_layer_by_layer():
    """Its fused writer takes bf16 pools only (models/dspark.py, _fused_kv_write_layout)."""
    ours, sglang = (named(beside_target(case(draft_kv="fp8"), path)) for path in (OURS, SGLANG))
    assert (sglang["K/V projection"][0], ours["K/V projection"][0]) == (2, 1)
    # Norm, rotation, two conversions, a store, in both layers.
    assert (sglang["context K/V write"][0], ours["context K/V write"][0]) == (10, 1)
    assert sglang["context K/V write"][1] > 2 * ours["context K/V write"][1]
    assert (sglang["q/k norm, rope, KV store"][0], ours["q/k norm, rope, KV store"][0]) == (8, 2)


def test_what_sglang_covers_is_read_from_its_source():
    from pathlib import Path

    import sglang

    text = (Path(sglang.__path__[0]) / "srt" / "models" / "dspark.py").read_text()
    assert "if buf.dtype != torch.bfloat16:\n                    return None" in text


@pytest.mark.parametrize("preset", ["m3-tp8", "m3-tp1"])
@pytest.mark.parametrize("pool", ["bf16", "fp8"])
def test_the_writer_s_bytes_are_the_benchmark_s(preset, pool):
    """`bench kernels` counts the norm's multipliers as well, once: 5 layers of 128 floats."""
    import torch

    ranks = PRESETS[preset].ranks
    asked = case(target=MINIMAX_M3, draft=MINIMAX_M3_DRAFT, ranks=ranks, batch=4, draft_kv=pool)
    shape = Shape(PRESETS[preset], 4 * 8, torch.bfloat16 if pool == "bf16" else torch.float8_e4m3fn)
    counted = named(beside_target(asked, OURS))["context K/V write"][1]
    assert counted == context_kv.BENCH.moved_bytes(shape) - 5 * 128 * 4


def test_the_context_is_outside_the_graphs():
    eager = {stage.part for stage in beside_target(case(ranks=2), OURS) if stage.eager}
    assert eager == {draft_stages.CONTEXT, draft_stages.ROUND}


def test_nothing_depends_on_the_path_but_the_two_ops():
    """What is not ours must cost the same on both paths, whatever the pool."""
    for pool in ("bf16", "fp8"):
        ours, sglang = (named(beside_target(case(draft_kv=pool, ranks=2), path)) for path in (OURS, SGLANG))
        same = {"K/V projection", "context K/V write", "q/k norm, rope, KV store"}
        assert {name: found for name, found in ours.items() if name not in same} == {
            name: found for name, found in sglang.items() if name not in same
        }
