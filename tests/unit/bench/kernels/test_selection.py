"""What a run is about, and what is refused by name."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets
from sglang_dspark.bench.kernels.selection import SelectionError, select

CPU = platforms.describe("cpu", "cpu")
AMD = platforms.describe("amd", "gfx942")


def test_the_whole_run():
    found = select(AMD)
    writer, query = found.benches
    assert [bench.name for bench in found.benches] == ["context_kv", "qk_norm_rope"]
    # Eight ranks share the four KV heads, one each, as four do; the query op works a layer at a time.
    assert {preset.name for preset in found.presets_of(writer)} == {
        "m3-tp1", "m3-tp2", "m3-tp4", "m3-tp4-depth1", "m3-tp4-depth3"
    }  # fmt: skip
    assert {preset.name for preset in found.presets_of(query)} == {"m3-tp1", "m3-tp2", "m3-tp4", "m3-tp8"}
    assert "context_kv: m3-tp8 has the shapes of m3-tp4, which is run" in found.notes()
    shapes = found.shapes(writer)
    assert {shape.tokens for shape in shapes} == set(presets.TOKENS) and max(presets.TOKENS) == 16384
    assert {shape.pool_dtype for shape in shapes} == {torch.bfloat16, torch.float8_e4m3fnuz}
    assert len(shapes) == len(set(shapes)) == 5 * 2 * len(presets.TOKENS)


def test_quick_is_fewer():
    found = select(AMD, quick=True)
    assert [preset.name for preset in found.presets] == list(presets.QUICK_PRESETS)
    assert found.tokens == presets.QUICK_TOKENS


def test_what_was_named_is_what_runs():
    found = select(CPU, quick=True, ops=["qk_norm_rope"], backends=["torch"], presets=["m3-tp8"], tokens=[3, 5])
    assert [bench.name for bench in found.benches] == ["qk_norm_rope"]
    assert found.backends == {"qk_norm_rope": ("torch",)} and found.refused == {"qk_norm_rope": {}}
    assert [(shape.preset.name, shape.tokens) for shape in found.shapes(found.benches[0])] == [
        ("m3-tp8", tokens) for tokens in (3, 5, 3, 5)
    ]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"ops": ["attention"]}, "no op attention: known are context_kv, qk_norm_rope"),
        ({"presets": ["m4-tp4"]}, "no preset m4-tp4: known are m3-tp1, m3-tp2"),
        ({"backends": ["cutlass"]}, "no backend cutlass: known are aiter, cuda, hip, host, torch, triton"),
        ({"tokens": [8, 0]}, "asked for 0 tokens"),
    ],
)
def test_unknown_names_are_refused(asked, message):
    with pytest.raises(SelectionError, match=message):
        select(CPU, **asked)


def test_a_backend_that_nothing_here_runs_is_refused_with_the_reasons():
    with pytest.raises(SelectionError, match="context_kv: hip: needs an AMD GPU .*This platform offers host, torch"):
        select(CPU, backends=["hip"])


def test_one_that_runs_keeps_the_other_s_reasons():
    found = select(CPU, backends=["hip", "torch"])
    assert found.backends["context_kv"] == ("torch",)
    assert found.refused["context_kv"] == {"hip": "needs an AMD GPU"}


def test_a_missing_compiler_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_DSPARK_HIP_COMPILER", "no-such-compiler")
    monkeypatch.setenv("SGLANG_DSPARK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SelectionError, match="no AMD GPU compiler: tried no-such-compiler"):
        select(AMD, ops=["context_kv"], backends=["hip"])
