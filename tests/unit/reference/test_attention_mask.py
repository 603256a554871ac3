"""Both masks against the rule in words, one (row, key) pair at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from sglang_dspark.reference.attention_mask import dense_mask, flex_mask, masked_attention

ANCHORS = torch.tensor([[0, 3, 9], [2, 5, 7]])  # the last is padding, which must see no context wherever it stands
KEEP = torch.tensor([[True, True, True], [True, True, False]])
LENGTH, GAMMA = 10, 4


def rule(batch: int, row: int, key: int) -> bool:
    block = row // GAMMA
    if key >= LENGTH:
        return (key - LENGTH) // GAMMA == block
    return bool(KEEP[batch, block]) and key < int(ANCHORS[batch, block])


def wanted() -> torch.Tensor:
    rows, keys = 3 * GAMMA, LENGTH + 3 * GAMMA
    return torch.tensor([[[rule(b, row, key) for key in range(keys)] for row in range(rows)] for b in range(2)])


def test_dense_mask() -> None:
    assert torch.equal(dense_mask(ANCHORS, KEEP, LENGTH, GAMMA)[:, 0], wanted())


def test_flex_mask() -> None:
    mask = flex_mask(ANCHORS, KEEP, LENGTH, GAMMA)
    rows, keys = 3 * GAMMA, LENGTH + 3 * GAMMA
    assert torch.equal(create_mask(mask.mask_mod, 2, 1, rows, keys, device="cpu")[:, 0], wanted())
    assert mask.shape == (2, 1, rows, keys)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_both_attend_alike() -> None:
    """The GPU's way in eager mode, which the CPU has for the forward pass only."""
    torch.manual_seed(0)
    rows, keys = 3 * GAMMA, LENGTH + 3 * GAMMA
    q, k, v = torch.randn(2, 4, rows, 16), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
    dense, flex = (
        masked_attention(q, k, v, mask=build(ANCHORS, KEEP, LENGTH, GAMMA), scale=0.25)
        for build in (dense_mask, flex_mask)
    )
    torch.testing.assert_close(flex, dense, atol=1e-5, rtol=1e-5)
    everything = masked_attention(q, k, v, mask=None, scale=0.25)
    assert (everything - dense).abs().max() > 0.1
