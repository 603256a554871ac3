"""On ROCm every norm of the draft goes through SGLang's fused kernel, with or without its switch."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from sglang.srt.layers.layernorm import GemmaRMSNorm

from sglang_dspark import platforms
from sglang_dspark.models.fused_norms import pin_fused_norms

KERNELS = "sglang.kernels.ops.layernorm.minimax_m3_rmsnorm"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for the Triton kernels, which need a GPU."""
    calls: list[str] = []

    def gemma_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        calls.append("plain")
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + weight.float())

    def gemma_fused_add_rmsnorm(x, residual, weight, eps):
        total = x + residual
        out = gemma_rmsnorm(total, weight, eps)
        calls[-1] = "residual"
        return out, total

    module = ModuleType(KERNELS)
    module.gemma_rmsnorm, module.gemma_fused_add_rmsnorm = gemma_rmsnorm, gemma_fused_add_rmsnorm
    monkeypatch.setitem(sys.modules, KERNELS, module)
    return calls


def model() -> torch.nn.Sequential:
    norms = torch.nn.Sequential(GemmaRMSNorm(16), torch.nn.Linear(16, 16), GemmaRMSNorm(16))
    for norm in (norms[0], norms[2]):
        norm.weight.data.normal_()
    return norms


def test_every_norm_is_pinned_on_amd(calls: list[str]) -> None:
    """One that was left out would be six small kernels in every layer."""
    norms = model()
    assert pin_fused_norms(norms, platforms.describe("amd", "gfx942")) == 2
    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    torch.testing.assert_close(norms[0](x), norms[0].forward_native(x))
    for found, expected in zip(norms[2](x, residual.clone()), norms[2].forward_native(x, residual), strict=True):
        torch.testing.assert_close(found, expected)
    assert calls == ["plain", "residual"]
    added = torch.randn(3, 16)
    torch.testing.assert_close(norms[2](x, residual.clone(), added)[0], norms[2].forward_native(x, residual, added)[0])


@pytest.mark.parametrize(("name", "arch"), [("cpu", "cpu"), ("nvidia", "sm_90")])
def test_other_platforms_keep_sglang_s_own(calls: list[str], name: str, arch: str) -> None:
    """Their fused norms need no help."""
    norms = model()
    assert pin_fused_norms(norms, platforms.describe(name, arch)) == 0
    norms[0](torch.randn(3, 16))
    assert calls == []
