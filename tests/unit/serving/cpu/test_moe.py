"""MiniMax-M3's experts on a CPU against a loop over tokens and their experts in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.serving.cpu.moe import around_moe_forward_native

EXPERTS, HIDDEN, WIDTH, ALPHA, LIMIT = 5, 8, 6, 1.702, 1.5


def never(*_: object) -> torch.Tensor:
    raise AssertionError("SGLang's own loop was called")


def config(**changes: object) -> SimpleNamespace:
    values = {"activation": "silu", "gemm1_alpha": ALPHA, "gemm1_clamp_limit": LIMIT, "gate_up_interleaved": False}
    return SimpleNamespace(**values | changes)


def layer_of(generator: torch.Generator) -> SimpleNamespace:
    return SimpleNamespace(
        w13_weight=torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator),
        w2_weight=torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator),
    )


def slow(layer: SimpleNamespace, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """sum over a token's experts of weight * W2 (g * sigmoid(alpha g) * (u + 1)), g and u clamped."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token], ids[token], strict=True):
            both = layer.w13_weight[expert].double() @ x[token].double()
            for i in range(WIDTH):
                gate, up = both[i].clamp(max=LIMIT), both[WIDTH + i].clamp(-LIMIT, LIMIT)
                hidden = gate * torch.sigmoid(ALPHA * gate) * (up + 1)
                out[token] += weight.double() * hidden * layer.w2_weight[expert, :, i].double()
    return out


@pytest.mark.parametrize(("tokens", "chosen"), [(1, 2), (9, 2), (4, 1), (3, 5)])
def test_experts(tokens: int, chosen: int) -> None:
    """[gate | up] taken for interleaved columns, a clamp left out, or a weight of another token: all silent."""
    generator = torch.Generator().manual_seed(tokens)
    layer, x = layer_of(generator), torch.randn(tokens, HIDDEN, generator=generator)
    weights = torch.rand(tokens, chosen, generator=generator)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:chosen] for _ in range(tokens)])
    out = around_moe_forward_native(never, layer, x, (weights, ids, None), config())
    # float32 sums of at most 5 * 6 * 8 products of size 1.
    torch.testing.assert_close(out.double(), slow(layer, x, weights, ids), rtol=1e-4, atol=1e-4)


def test_the_case_reaches_every_clamp() -> None:
    """Without values beyond the limit on both sides, the test above could not see a missing clamp."""
    generator = torch.Generator().manual_seed(9)
    layer, x = layer_of(generator), torch.randn(9, HIDDEN, generator=generator)
    both = torch.einsum("eoh,th->eto", layer.w13_weight, x)
    gate, up = both.chunk(2, dim=-1)
    assert (gate > LIMIT).any() and (gate < -LIMIT).any() and (up > LIMIT).any() and (up < -LIMIT).any()


def test_a_gate_is_clamped_from_above_only() -> None:
    """SwiGLU-OAI keeps very negative gates: clamped, they would still let a little through."""
    layer = SimpleNamespace(w13_weight=torch.tensor([[[-9.0], [0.5]]]), w2_weight=torch.ones(1, 1, 1))
    one = torch.ones(1, 1)
    out = around_moe_forward_native(never, layer, one, (one, torch.zeros(1, 1).long(), None), config())
    gate = torch.tensor(-9.0)
    torch.testing.assert_close(out[0, 0], gate * torch.sigmoid(ALPHA * gate) * 1.5)


def test_the_result_has_the_input_s_dtype_and_is_summed_in_float32() -> None:
    """bf16 partial sums of eight experts lose what a greedy token may hang on."""
    layer = SimpleNamespace(w13_weight=torch.zeros(3, 2, 1).bfloat16(), w2_weight=torch.ones(3, 1, 1).bfloat16())
    layer.w13_weight[:, 0] = 100.0  # the gate stops at the limit; up is 0
    x = torch.ones(1, 1).bfloat16()
    # 1 + 1/512 + 1/512: bf16 sums drop both small parts, their float32 sum rounds up to 1 + 1/128 - or down alone.
    weights = torch.tensor([[1.0, 2**-8 * 0.75, 2**-8 * 0.75]])
    out = around_moe_forward_native(
        never, layer, x, (weights, torch.tensor([[0, 1, 2]]), None), config(gemm1_alpha=64.0, gemm1_clamp_limit=1.0)
    )
    assert out.dtype == torch.bfloat16
    assert out.item() == 1 + 2**-7


@pytest.mark.parametrize(
    "change", [{"activation": "gelu"}, {"activation": "situ"}, {"gemm1_alpha": None}, {"gate_up_interleaved": True}]
)
def test_other_experts_go_to_sglang(change: dict[str, object]) -> None:
    """GPT-OSS's interleaved layers and plain SwiGLU are SGLang's own to compute."""
    seen = []
    asked = ("layer", torch.zeros(1), "topk", config(**change))
    assert around_moe_forward_native(lambda *args: seen.append(args) or "theirs", *asked) == "theirs"
    assert seen == [asked]
