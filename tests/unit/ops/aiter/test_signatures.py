"""Finding functions: what is missing, what cannot be imported, what has drifted; and calls by position."""

from __future__ import annotations

import sys

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.aiter.signatures import Unusable, Wanted, find
from sglang_dspark.ops.context_kv import aiter_backend as context_kv
from sglang_dspark.ops.context_kv import aiter_candidates as candidates
from sglang_dspark.ops.qk_norm_rope import aiter_backend as qk_norm_rope

from . import fake_aiter

pytestmark = pytest.mark.usefixtures("nothing_imported")

EVERY_FUNCTION = (*(wanted for one in candidates.CANDIDATES for wanted in one.wanted), qk_norm_rope.FUSED)


def scaled(value, scale, offset=7):
    return value, scale, offset


@pytest.mark.parametrize("wanted", EVERY_FUNCTION, ids=lambda wanted: wanted.name)
def test_every_function_is_found_in_the_current_release(install, wanted):
    install()
    assert set(wanted.parameters) <= {name for name, _ in find(wanted).order}


def test_a_call_is_made_by_position_with_the_defaults(install):
    install(rms_norm_opus=scaled)
    assert find(Wanted("aiter", "rms_norm_opus", ("scale", "value")))(scale=2, value=1) == (1, 2, 7)


def test_parameters_that_moved_are_passed_in_their_new_place(install):
    install(rms_norm_opus=lambda scale, value: (scale, value))
    assert find(Wanted("aiter", "rms_norm_opus", ("value", "scale")))(scale=2, value=1) == (2, 1)


def test_hidden_parameters_are_read_where_torch_has_them(install):
    """AITER's compiled functions are (*args, **kwargs) to Python: taken at their word they would all be refused."""
    install()
    order = dict(find(candidates.MROPE).order)
    assert list(order)[:3] == ["qkv", "qw", "kw"]
    assert (order["qkv"], order["rotary_dim"], order["gemma_norm"]) == (signatures.REQUIRED, 0, False)


def test_hidden_parameters_that_torch_does_not_have(install):
    install(rms_norm_opus=lambda *args, **kwargs: None)
    with pytest.raises(Unusable, match="rms_norm_opus hides its parameters, and is not registered with torch"):
        find(candidates.NORM)


def test_the_tensor_that_aiter_adds_is_not_asked_for(install):
    """Its wrapper passes one where the first parameter is none, so that torch finds the device."""
    if not hasattr(torch.ops.aiter, "first_is_no_tensor"):
        fake_aiter.LIBRARY.define("first_is_no_tensor(Tensor dummy, int count, Tensor out) -> ()")
    install(first_is_no_tensor=None)
    sys.modules["aiter"].first_is_no_tensor = lambda *args, **kwargs: args
    assert find(Wanted("aiter", "first_is_no_tensor", ("out", "count")))(out="out", count=3) == (3, "out")


@pytest.mark.parametrize(
    ("name", "wanted", "gone", "reason"),
    [
        # v0.1.17 and before
        ("fused_qk_norm_mrope_3d_cache_pts_quant_shuffle", candidates.MROPE, ("gemma_norm",), "gemma_norm"),
        # The first version of the function, of 2026-06-17, with one kv_cache
        ("fused_qknorm_idxrqknorm", candidates.QKNORM, ("kv_cache_k", "kv_cache_v"), "kv_cache_k, kv_cache_v"),
        ("rms_norm_opus", candidates.NORM, ("gemma_norm",), "gemma_norm"),
    ],
)
def test_a_drifted_signature_names_what_is_missing(install, name, wanted, gone, reason):
    declared = {"fused_qk_norm_mrope_3d_cache_pts_quant_shuffle": lambda_of(candidates.MROPE)}
    install(**{name: fake_aiter.without(declared.get(name, getattr(fake_aiter, name)), *gone)})
    with pytest.raises(Unusable, match=f"^{name} has no parameter {reason}$"):
        find(wanted)


def lambda_of(wanted: Wanted):
    """A function with these parameters in the open."""
    return eval(f"lambda {', '.join(wanted.parameters)}: None")


def test_a_new_required_parameter_is_named(install):
    install(rms_norm_opus=lambda out, input, weight, epsilon, gemma_norm, stream, *, mode: None)
    with pytest.raises(Unusable, match="rms_norm_opus asks for stream, mode, which this adapter does not know"):
        find(candidates.NORM)


def test_a_missing_function_is_named(install):
    install(rms_norm_opus=None)
    with pytest.raises(Unusable, match="^aiter has no rms_norm_opus$"):
        find(candidates.NORM)


def test_not_installed():
    sys.modules.pop("aiter")
    if signatures.importlib.util.find_spec("aiter") is not None:
        pytest.skip("aiter is installed")
    with pytest.raises(Unusable, match="^aiter is not installed$"):
        signatures.load("aiter")


def test_an_import_that_fails_without_a_gpu(tmp_path, monkeypatch):
    """Its probes raise what they like, RuntimeError for one; asked again, they are not run again."""
    (tmp_path / "aiter.py").write_text("raise RuntimeError('Get GPU arch from rocminfo failed\\nmore')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "aiter")
    reason = r"^aiter cannot be imported \(RuntimeError: Get GPU arch from rocminfo failed\)$"
    for _ in range(2):
        with pytest.raises(Unusable, match=reason):
            signatures.load("aiter")
    (tmp_path / "aiter.py").unlink()
    with pytest.raises(Unusable, match=reason):
        signatures.load("aiter")


def test_a_module_that_this_release_lacks(install, monkeypatch):
    install()
    monkeypatch.delitem(sys.modules, qk_norm_rope.FUSED.module)
    with pytest.raises(Unusable, match="cannot be imported: it has no aiter"):
        find(qk_norm_rope.FUSED)


@pytest.mark.parametrize("backend", [context_kv.BACKEND, qk_norm_rope.BACKEND], ids=["context_kv", "qk_norm_rope"])
@pytest.mark.parametrize(("name", "arch"), [("cpu", "cpu"), ("nvidia", "sm_90")])
def test_other_platforms_never_import_it(backend, name, arch, monkeypatch):
    monkeypatch.setattr(signatures.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    assert backend.refusals(platforms.describe(name, arch), None) == ["needs an AMD GPU"]
