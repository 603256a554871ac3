"""SGLang's writer as the baseline: found in the wheel, called with its own arguments, and missed out loud."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets
from sglang_dspark.bench.kernels import sglang_context_kv as upstream
from sglang_dspark.bench.kernels.context_kv import BENCH
from sglang_dspark.bench.kernels.op import Shape, UpstreamMissing

# The parameters of SGLang 0.5.23's launcher, in order, and a record of what they were given.
STAND_IN = """
launches = []
class Kernel:
    def __getitem__(self, grid):
        return lambda *arguments, **options: launches.append((grid, arguments, options))
_fused_kv_norm_rope_write_kernel = Kernel()

calls = []
def fused_kv_norm_rope_write(kv, meta, k_norm_weights, cos_sin_cache, positions, locs, num_layers, kv_size, head_dim,
                             eps, commit_lens=None, locs_row_width=None, is_neox_style=True, rotary_dim=None):
    calls.append(dict(locals()))
    _fused_kv_norm_rope_write_kernel[(kv.shape[0], num_layers)](kv, D=head_dim)
"""


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """Where an `sglang` that wins over the installed one can be put. It cannot be imported as a package."""
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not importable')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "sglang", raising=False)
    return package.joinpath(*upstream.MODULE.split(".")[1:]).with_suffix(".py")


def work(dtype=torch.bfloat16, preset="m3-tp1"):
    return BENCH.build(Shape(presets.PRESETS[preset], 2, dtype), "cpu", num_slots=16, num_positions=8)


def test_it_is_given_what_sglang_gives_it(site):
    site.parent.mkdir(parents=True)
    site.write_text(STAND_IN)
    write, given = upstream.load(), work()
    kv, positions, slots = given.sets[1].rows
    upstream.bind(write, given.spec, given.tables)(kv, positions, slots)
    (call,) = write.__globals__["calls"]
    assert (call["num_layers"], call["kv_size"], call["head_dim"], call["rotary_dim"]) == (5, 512, 128, 64)
    assert (call["eps"], call["is_neox_style"], call["commit_lens"]) == (1e-6, True, None)
    assert call["kv"] is kv and call["locs"] is slots and call["positions"] is positions
    k_pool, v_pool = given.tables.k_pools[3], given.tables.v_pools[3]
    assert call["meta"][3].tolist() == [k_pool.data_ptr(), v_pool.data_ptr(), 512, 512]


@pytest.mark.parametrize(("variant", "options"), [("sglang", {}), ("sglang_1_warp", {"num_warps": 1})])
def test_a_variant_adds_its_options_to_every_launch(site, variant, options):
    """The plain one launches as SGLang does; the other differs in nothing but the warps."""
    site.parent.mkdir(parents=True)
    site.write_text(STAND_IN)
    write, given = upstream.load(variant), work()
    rows = given.sets[0].rows
    upstream.bind(write, given.spec, given.tables)(*rows)
    ((grid, arguments, found),) = write.__globals__["launches"]
    assert grid == (2, 5) and arguments[0] is rows[0]
    assert found == {"D": 128, **options}


def test_a_wheel_without_the_file_is_said(site):
    with pytest.raises(UpstreamMissing, match=f"has no {upstream.MODULE}"):
        upstream.load()


@pytest.mark.parametrize(
    ("source", "reason"), [("import no_such_module", "no_such_module"), ("x = 1", "has no attribute")]
)
def test_a_file_that_cannot_be_used_is_said(site, source, reason):
    site.parent.mkdir(parents=True)
    site.write_text(source)
    with pytest.raises(UpstreamMissing, match=reason):
        upstream.load()


def test_no_sglang_is_said(monkeypatch):
    monkeypatch.setattr(upstream.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UpstreamMissing, match="SGLang is not installed"):
        upstream.load()


def test_fp8_is_not_covered():
    given = work(torch.float8_e4m3fn)
    with pytest.raises(UpstreamMissing, match="does not cover a pool of torch.float8_e4m3fn"):
        upstream.bind(lambda: None, given.spec, given.tables)


def test_a_cpu_has_no_such_baseline():
    given = work()
    with pytest.raises(UpstreamMissing, match="runs on a GPU only"):
        upstream.binder("sglang")(platforms.describe("cpu", "cpu"), given.spec, given.tables)


def test_a_gpu_loads_it_and_binds_it(site):
    site.parent.mkdir(parents=True)
    site.write_text(STAND_IN)
    given = work()
    upstream.binder("sglang_1_warp")(platforms.describe("nvidia", "sm_90"), given.spec, given.tables)(
        *given.sets[0].rows
    )
