"""Frequencies that survive casts and moves, and the rotation itself against complex numbers."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.reference.rotary import RotaryEmbedding, rotate

THETA = 5e6


def frequencies(rotary_dim: int) -> torch.Tensor:
    return THETA ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_frequencies_stay_float32(dtype) -> None:
    """A buffer would be cast with the model, and rounded frequencies dephase with the position."""
    wrapped = torch.nn.Sequential(torch.nn.Linear(2, 2), RotaryEmbedding(64, THETA)).to(dtype)
    assert wrapped[0].weight.dtype == dtype
    kept = wrapped[1].inverse_frequencies
    assert kept.dtype == torch.float32
    torch.testing.assert_close(kept.double(), frequencies(64), rtol=1e-6, atol=0)


def test_bf16_frequencies_would_have_been_seen() -> None:
    rounded = frequencies(64).bfloat16().double()
    assert ((rounded - frequencies(64)).abs() * 10_000).max() > 1


def test_frequencies_follow_the_device_and_survive_empty_memory() -> None:
    rotary = RotaryEmbedding(8, THETA).to("meta")
    assert rotary.inverse_frequencies.device.type == "meta"
    assert torch.equal(rotary.to_empty(device="cpu").inverse_frequencies, RotaryEmbedding(8, THETA).inverse_frequencies)
    with torch.device("meta"):
        assert RotaryEmbedding(8, THETA).inverse_frequencies.device.type == "meta"


def test_nothing_of_it_is_saved() -> None:
    assert RotaryEmbedding(8, THETA).state_dict() == {}


def test_rotation_is_a_complex_product_on_neox_pairs() -> None:
    """Catches interleaved pairs, a swapped sign, a rotation of channels past rotary_dim."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 16)
    positions = torch.tensor([[0, 1, 2, 3, 4], [900, 3, 70_000, 7, 7]])
    cos, sin = RotaryEmbedding(8, THETA)(positions)
    turned = torch.polar(torch.ones(2, 5, 1, 4).double(), positions[..., None, None] * frequencies(8))
    pairs = torch.complex(x[..., :4].double(), x[..., 4:8].double()) * turned
    found = rotate(x, cos, sin)
    # float32 angles at position 70,000 are exact to 70,000 / 2^24 = 0.004 radians.
    torch.testing.assert_close(found[..., :4].double(), pairs.real, atol=2e-2, rtol=0)
    torch.testing.assert_close(found[..., 4:8].double(), pairs.imag, atol=2e-2, rtol=0)
    torch.testing.assert_close(found[0, :, :, :8], torch.cat([pairs.real, pairs.imag], -1)[0].float())
    assert torch.equal(found[..., 8:], x[..., 8:])


def test_bf16_rotates_in_float32_and_rounds_once() -> None:
    """The served writer's law. Rounding cos and sin first would differ in most elements."""
    x = torch.randn(1, 64, 2, 16).bfloat16()
    cos, sin = RotaryEmbedding(16, THETA)(torch.arange(64).unsqueeze(0))
    assert torch.equal(rotate(x, cos, sin), rotate(x.float(), cos, sin).bfloat16())
