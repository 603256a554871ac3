"""Machines that this one is not: platforms, backends, switches and sizes are given as values."""

from __future__ import annotations

import ast
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import sglang_dspark
from sglang_dspark import platforms
from sglang_dspark.checkpoints.lint import Level
from sglang_dspark.doctor import Case, aiter_library, backends, checkpoint_pair, machine, switches
from sglang_dspark.doctor.checkpoint_pair import Sizes
from sglang_dspark.doctor.findings import Finding
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, driver, toolchain
from sglang_dspark.serving import contract
from tests.unit.checkpoints.drafts import automodel
from tests.unit.checkpoints.folders import canonical_tensors, save_draft, save_target

MI300X, MI355X = platforms.describe("amd", "gfx942"), platforms.describe("amd", "gfx950")
H200, CPU = platforms.describe("nvidia", "sm_90"), platforms.describe("cpu", "cpu")


def judged(platform: platforms.Platform, **environment: str) -> dict[str, Finding]:
    return {finding.subject: finding for finding in switches.judge(platform, environment)}


def test_switches_are_sglang_s_own() -> None:
    """A name that SGLang does not read, or another default, would be advice about nothing."""
    tree = ast.parse((contract._installed_root() / "srt" / "environ.py").read_text())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Envs")
    found = {ast.unparse(n.targets[0]): ast.literal_eval(n.value.args[0]) for n in body if _is_field(n)}
    assert {name: str(found[name]).lower() for name in switches.DEFAULTS} == switches.DEFAULTS


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in switches.DEFAULTS


@pytest.mark.parametrize(
    ("platform", "environment", "name", "level", "text"),
    [
        (MI300X, {}, "SGLANG_USE_AITER", Level.WARNING, "slower kernels"),
        (MI300X, {"SGLANG_USE_AITER": "1"}, "SGLANG_USE_AITER", Level.OK, "AITER"),
        (MI300X, {"SGLANG_USE_AITER": "maybe"}, "SGLANG_USE_AITER", Level.PROBLEM, "neither true nor false"),
        (MI300X, {"SGLANG_USE_HND_KVCACHE": "true"}, "SGLANG_USE_HND_KVCACHE", Level.PROBLEM, "refuses"),
        (H200, {"SGLANG_USE_HND_KVCACHE": "1"}, "SGLANG_USE_HND_KVCACHE", Level.PROBLEM, "refuses"),
        (MI300X, {"SGLANG_RAGGED_VERIFY_MODE": "compact"}, "SGLANG_RAGGED_VERIFY_MODE", Level.PROBLEM, "one width"),
        (CPU, {"SGLANG_RAGGED_VERIFY_MODE": "compact"}, "SGLANG_RAGGED_VERIFY_MODE", Level.OK, "compact"),
        (CPU, {"SGLANG_RAGGED_VERIFY_MODE": "off"}, "SGLANG_RAGGED_VERIFY_MODE", Level.PROBLEM, "off"),
        (H200, {}, "SGLANG_RAGGED_VERIFY_MODE", Level.WARNING, "NVFP4"),
        (MI300X, {"SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD": "1"}, "SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD", Level.WARNING,
         "ignores it on gfx942"),
        (MI355X, {"SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD": "1"}, "SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD", Level.WARNING,
         "answers differ"),
        (MI300X, {"SGLANG_USE_AITER": "1", "SGLANG_AITER_KV_CACHE_LAYOUT": "vectorized_5d"},
         "SGLANG_AITER_KV_CACHE_LAYOUT", Level.PROBLEM, "vectorized_5d"),
        (MI300X, {"SGLANG_USE_AITER": "1", "SGLANG_AITER_KV_CACHE_LAYOUT": "7d"}, "SGLANG_AITER_KV_CACHE_LAYOUT",
         Level.PROBLEM, "7d"),
        (MI300X, {"SGLANG_USE_AITER": "1"}, "SGLANG_AITER_KV_CACHE_LAYOUT", Level.OK, "nhd"),
    ],
)  # fmt: skip
def test_a_switch(platform: platforms.Platform, environment: dict, name: str, level: Level, text: str) -> None:
    """Fault 6, and SGLang's other switches: an fp8 LM head is never on without a word."""
    finding = judged(platform, **environment)[name]
    assert finding.level is level and text in finding.found
    assert bool(finding.remedy) == (level is not Level.OK)


def test_a_layout_that_sglang_ignores_is_no_problem() -> None:
    """Without AITER, and with the other layout switch on, SGLang never reads this one."""
    name = "SGLANG_AITER_KV_CACHE_LAYOUT"
    assert name not in judged(MI300X, **{name: "vectorized_5d"})
    assert name not in judged(H200, **{name: "vectorized_5d", "SGLANG_USE_AITER": "1"})


def op_with(**reasons: list[str]) -> context_kv.dispatch.Op:
    """The op with backends that refuse for the reasons given, whatever the spec."""
    made = tuple(Backend(name, lambda p, s, r=r: list(r), lambda p, s, t: print) for name, r in reasons.items())
    return replace(context_kv.OP, backends=made)


def test_the_first_backend_is_what_a_server_takes() -> None:
    findings = list(backends.judge(op_with(hip=[], triton=[], aiter=["x"], torch=[]), MI300X))
    assert [f.level for f in findings] == [Level.OK] * 8
    assert findings[0].found == "hip for bf16 KV on TP 1" and findings[3].found == "hip for fp8 KV on TP 8"
    assert findings[6].text == "refuses: x"


def test_a_fall_back_is_a_warning_and_no_backend_a_problem() -> None:
    (first, *_) = backends.judge(op_with(hip=["no clang"], triton=["z"], aiter=["y"], torch=[]), MI300X)
    assert first.level is Level.WARNING and "torch (PyTorch, many launches)" in first.found
    assert "hip: no clang | triton: z | aiter: y" in first.found and first.remedy == "do what hip asks for"
    levels = [f.level for f in backends.judge(op_with(hip=["a"], triton=["b"], aiter=["c"], torch=["d"]), MI300X)]
    assert levels[:4] == [Level.PROBLEM] * 2 + [Level.WARNING] * 2


def test_a_backend_that_the_environment_names() -> None:
    op = op_with(hip=["a"], triton=[], aiter=[], torch=[])
    assert next(backends.judge(op, MI300X, "hip")).level is Level.PROBLEM
    assert next(backends.judge(op, MI300X, "triton")).level is Level.OK
    (unknown,) = backends.judge(op, MI300X, "hipp")
    assert unknown.level is Level.PROBLEM and "asked for backend 'hipp'" in unknown.found
    source = (Path(sglang_dspark.__file__).parent / "models" / "minimax_m3_dspark.py").read_text()
    assert all(f'"{variable}"' in source for variable in backends.VARIABLES.values())


def test_the_specs_are_minimax_m3_s() -> None:
    """4 KV heads cannot be split eight ways: ranks then hold copies of one."""
    heads = {asked.name: asked.spec.num_kv_heads for asked in backends.minimax_m3(context_kv.OP, MI300X)}
    assert heads == {"bf16 KV on TP 1": 4, "bf16 KV on TP 8": 1, "fp8 KV on TP 1": 4, "fp8 KV on TP 8": 1}
    assert str(backends.minimax_m3(context_kv.OP, MI300X)[2].spec.pool_dtype) == "torch.float8_e4m3fnuz"
    assert str(backends.minimax_m3(context_kv.OP, MI355X)[2].spec.pool_dtype) == "torch.float8_e4m3fn"


def test_prebuilt_code_needs_no_compiler(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(code, "PREBUILT", tmp_path)
    monkeypatch.setenv(toolchain.AMD.variable, "/nowhere/clang")
    missing = machine.native_kernel(MI300X, "context_kv_writer", toolchain.AMD)
    assert missing.level is Level.PROBLEM and "no AMD GPU compiler: tried /nowhere/clang" in missing.found
    (tmp_path / code.file_name("context_kv_writer", toolchain.AMD, "gfx942")).touch()
    found = machine.native_kernel(MI300X, "context_kv_writer", toolchain.AMD)
    assert found.level is Level.OK and found.found.startswith("prebuilt for gfx942")
    assert machine.native_kernel(MI355X, "context_kv_writer", toolchain.AMD).level is Level.PROBLEM


def test_no_driver() -> None:
    """Backends refuse for it only when the pool is bound; code that is there says nothing of it."""
    missing = machine.native_driver(replace(driver.HIP, libraries=("libnowhere.so.9",)))
    assert missing.level is Level.PROBLEM and "tried libnowhere.so.9" in missing.found
    assert machine.native_driver(replace(driver.HIP, libraries=("libc.so.6",))).level is Level.OK


def test_a_cpu_that_nobody_asked_for(monkeypatch) -> None:
    """A driver that is not loaded looks like this; the CPU engine would not start either."""
    monkeypatch.setattr(platforms, "current", lambda: CPU)
    levels = {f.subject: f.level for f in machine.check_platform(Case({}))}
    assert levels["platform"] is Level.PROBLEM
    assert Level.PROBLEM not in {f.level for f in machine.check_platform(Case({"SGLANG_USE_CPU_ENGINE": "1"}))}


def test_a_card_that_is_not_supported(monkeypatch) -> None:
    def refuse() -> None:
        platforms.describe("amd", "gfx1100")

    monkeypatch.setattr(platforms, "current", refuse)
    (wrong,) = (f for f in machine.check_platform(Case({})) if f.level is Level.PROBLEM)
    assert "gfx1100" in wrong.found
    assert machine.platform_or_none() is None and list(backends.check(Case({}))) == []


@pytest.fixture
def fresh_aiter(monkeypatch):
    signatures._import.cache_clear()
    yield monkeypatch
    signatures._import.cache_clear()


def test_aiter_that_is_not_there(fresh_aiter) -> None:
    fresh_aiter.setitem(sys.modules, "aiter", None)
    (finding,) = aiter_library.judge()
    assert finding.level is Level.WARNING


def test_aiter_whose_signatures_drifted(fresh_aiter) -> None:
    module = types.ModuleType("aiter")
    module.rms_norm_opus = lambda out, input, weight, epsilon, gemma_norm: None
    module.rope_cached_positions_fwd_inplace = lambda input, cos, sin: None
    fresh_aiter.setitem(sys.modules, "aiter", module)
    found = {f.subject: f for f in aiter_library.judge()}
    assert found["rms_norm_opus"].level is Level.OK
    assert "no parameter positions" in found["rope_cached_positions_fwd_inplace"].found
    assert found["fused_qknorm_idxrqknorm"].level is Level.WARNING
    assert len(found) == 1 + len(aiter_library.WANTED)


@pytest.mark.parametrize(
    ("target_gb", "level"), [(300, Level.OK), (800, Level.WARNING), (1386, Level.PROBLEM)], ids=lambda x: str(x)
)
def test_room_on_eight_mi300x(target_gb: int, level: Level) -> None:
    """1536 GB in all, of which 1382 GB are for weights and KV."""
    sizes = Sizes(target_gb * 10**9, 10**9, 4, 5 * 2 * 4 * 128)
    found = {f.subject: f for f in checkpoint_pair.judge(sizes, "GPUs", 8, 192 * 10**9)}
    assert found["room"].level is level
    assert found["draft KV"].found == "10,240 bytes a token in bf16, 5,120 in fp8, divided by up to 4 ranks"


def test_sizes_of_nothing(tmp_path: Path) -> None:
    """The reason must be the path, not the files that a folder lacks which is not there."""
    draft = save_draft(tmp_path / "draft", automodel())
    (finding,) = checkpoint_pair.check_memory(Case({}, target=tmp_path / "nowhere", draft=draft))
    assert finding.level is Level.PROBLEM and "found no such folder" in finding.found


def test_sizes_are_read_from_every_file(tmp_path: Path) -> None:
    """Two tables of 100 x 48 and a norm of 48 in float32; AutoModel's copies of the tables are not loaded."""
    raw = automodel()
    sizes = checkpoint_pair.measure(save_target(tmp_path / "target"), save_draft(tmp_path / "draft", raw))
    assert sizes.target_bytes == 2 * 100 * 48 * 2 + 48 * 4
    assert sizes.draft_bytes == sum(t.numel() * 2 for t in canonical_tensors(raw).values())
    assert sizes.draft_kv_values_per_token == raw["num_hidden_layers"] * 2 * 2 * 16
