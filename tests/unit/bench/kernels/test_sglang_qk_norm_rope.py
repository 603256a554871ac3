"""SGLang's query path as the baseline: its own store on the CPU, and its kernels' calls."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets
from sglang_dspark.bench.kernels import agreement, sglang_modules, sglang_unfused
from sglang_dspark.bench.kernels import sglang_qk_norm_rope as upstream
from sglang_dspark.bench.kernels.op import Shape, UpstreamMissing
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH
from sglang_dspark.ops.qk_norm_rope.torch_backend import normalised_and_rotated

TP1 = presets.PRESETS["m3-tp1"]
CPU = platforms.describe("cpu", "cpu")


def work(dtype=torch.bfloat16, tokens=48):
    return BENCH.build(Shape(TP1, tokens, dtype), "cpu", num_slots=320, num_positions=64)


def rotation(given, x, multipliers, positions):
    cos, sin = given.tables.cos_sin[positions].float()[:, None].chunk(2, dim=-1)
    heads = x.unflatten(1, (-1, given.spec.head_dim))
    return normalised_and_rotated(given.spec, heads, multipliers, cos, sin).flatten(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
def test_sglangs_own_store_agrees_within_its_share(dtype):
    """The pool class of the installed SGLang, over our tensors; K is rotated by torch here."""
    given = work(dtype)

    def norm_and_rotate(qkv, positions):
        columns = slice(64 * 128, 68 * 128)
        qkv[:, columns] = rotation(given, qkv[:, columns], given.tables.k_norm_multipliers, positions)
        return qkv[:, columns]

    scales = given.spec.pool_scales if dtype.itemsize == 1 else None
    store = sglang_modules.store(given.spec, given.tables.pools, scales)
    calls = {
        "torch": BENCH.bind(CPU, given, "torch"),
        "sglang": upstream.joined(norm_and_rotate, store, given.spec),
    }
    share = sglang_unfused.differing_share(platforms.describe("amd", "gfx950"), given.shape)
    assert agreement.disagreement(BENCH, given, calls, {"sglang": share}) == {}
    if dtype.itemsize == 1:
        # Two roundings instead of one do show: a share of nothing would leave SGLang out of every fp8 table.
        assert "elements differ" in agreement.disagreement(BENCH, given, calls, {"sglang": 1e-2})["sglang"]


@pytest.fixture
def kernel(monkeypatch):
    """A module in SGLang's place, with a record of its calls."""

    def install(module_name: str, name: str, function):
        module = ModuleType(module_name)
        setattr(module, name, function)
        monkeypatch.setitem(sys.modules, module_name, module)

    return install


def test_cuda_works_in_place(kernel):
    given = work()
    seen = {}

    def minimax_qknorm_rope(qkv, q_weight, k_weight, cos_sin_cache, positions, nq, nk, nv, eps):
        seen.update(heads=(nq, nk, nv), eps=eps, dtypes={q_weight.dtype, k_weight.dtype})
        for columns, weight in ((slice(0, nq * 128), q_weight), (slice(nq * 128, (nq + nk) * 128), k_weight)):
            qkv[:, columns] = rotation(given, qkv[:, columns], 1 + weight.float(), positions)

    kernel(*upstream.CUDA_KERNEL, minimax_qknorm_rope)
    call = upstream.bind(platforms.describe("nvidia", "sm_90"), given.spec, given.tables)
    ours = BENCH.bind(CPU, given, "torch")
    assert agreement.disagreement(BENCH, given, {"torch": ours, "sglang": call}, {"sglang": 0.0}) == {}
    assert seen == {"heads": (64, 4, 4), "eps": 1e-6, "dtypes": {torch.bfloat16}}


def test_rocm_works_into_new_tensors(kernel):
    given = work()
    seen = {}

    def qk_gemma_rmsnorm_rope(q, k, q_weight, k_weight, positions, cos_sin, eps, head_dim, rotary_dim, is_neox):
        seen.update(shapes=(tuple(q.shape), tuple(k.shape)), rest=(eps, head_dim, rotary_dim, is_neox))
        return q, rotation(given, k, 1 + k_weight, positions)

    kernel(*upstream.ROCM_KERNEL, qk_gemma_rmsnorm_rope)
    call = upstream.bind(platforms.describe("amd", "gfx942"), given.spec, given.tables)
    ours = BENCH.bind(CPU, given, "torch")
    assert agreement.disagreement(BENCH, given, {"torch": ours, "sglang": call}, {"sglang": 0.0}) == {}
    assert seen == {"shapes": ((48, 8192), (48, 512)), "rest": (1e-6, 128, 64, True)}


def test_what_is_missing_is_said(kernel, monkeypatch):
    given = work()
    with pytest.raises(UpstreamMissing, match="run on a GPU only"):
        upstream.bind(CPU, given.spec, given.tables)
    monkeypatch.setattr(upstream, "CUDA_KERNEL", ("sglang.no_such_module", "kernel"))
    with pytest.raises(
        UpstreamMissing, match="sglang.no_such_module.kernel of SGLang .* cannot be used: ModuleNotFound"
    ):
        upstream.bind(platforms.describe("nvidia", "sm_90"), given.spec, given.tables)


def test_another_pool_is_said(kernel):
    class MHATokenToKVPool:
        def __init__(self, size):
            pass

    kernel(*sglang_modules.POOL, MHATokenToKVPool)
    given = work()
    with pytest.raises(UpstreamMissing, match="MHATokenToKVPool of SGLang .* cannot be made: TypeError"):
        sglang_modules.store(given.spec, given.tables.pools, None)


@pytest.mark.parametrize(
    ("where", "parameters"),
    [
        (upstream.CUDA_KERNEL, "qkv q_weight k_weight cos_sin_cache positions nq nk nv eps"),
        (
            upstream.ROCM_KERNEL,
            "q k q_weight k_weight positions cos_sin_cache eps head_dim rotary_dim is_neox_style",
        ),
    ],
)
def test_the_installed_sglang_has_these_parameters(where, parameters):
    """The kernels cannot run here, and importing them needs Triton: their source is read."""
    module, name = where
    package, *inside = module.split(".")
    folders = importlib.util.find_spec(package).submodule_search_locations
    source = Path(folders[0]).joinpath(*inside).with_suffix(".py").read_text()
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    assert " ".join(argument.arg for argument in found.args.args) == parameters
