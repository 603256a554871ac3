"""One hidden row to K and V of every layer: in one product where the weights are plain, layer by layer elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.models import context_projection
from sglang_dspark.models.context_projection import ContextProjection

HIDDEN, QUERY, KV_HEADS, HEAD_DIM = 6, 8, 2, 4
KV = KV_HEADS * HEAD_DIM


def attention(seed: int, bias: bool = False) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(QUERY + 2 * KV, HIDDEN, generator=generator)
    shift = torch.randn(QUERY + 2 * KV, generator=generator) if bias else None

    def kv_proj_only(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.nn.functional.linear(hidden, weight, shift)
        return rows[:, QUERY : QUERY + KV], rows[:, QUERY + KV :]

    return SimpleNamespace(
        qkv_proj=SimpleNamespace(weight=weight, bias=shift),
        q_size=QUERY,
        kv_size=KV,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        kv_proj_only=kv_proj_only,
        k_norm=SimpleNamespace(weight=torch.zeros(HEAD_DIM)),
    )


def expected(attentions: list[SimpleNamespace], hidden: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(hidden.shape[0], len(attentions), 2, KV_HEADS, HEAD_DIM)
    for layer, each in enumerate(attentions):
        for half, rows in enumerate(each.kv_proj_only(hidden)):
            out[:, layer, half] = rows.view(-1, KV_HEADS, HEAD_DIM)
    return out


@pytest.mark.parametrize("sliceable", [True, False], ids=["stacked", "layer by layer"])
def test_projection(monkeypatch, sliceable: bool) -> None:
    """Query rows in place of key rows, or layers and halves crossed: shapes would agree all the same."""
    monkeypatch.setattr(context_projection, "can_dflash_slice_qkv_weight", lambda projection: (sliceable, ""))
    attentions, hidden = [attention(1), attention(2), attention(3)], torch.randn(5, HIDDEN)
    project = ContextProjection(attentions)
    assert (project._weight is not None) == sliceable
    torch.testing.assert_close(project(hidden), expected(attentions, hidden))
    assert project(hidden).is_contiguous()
    assert project(torch.zeros(0, HIDDEN)).shape == (0, 3, 2, KV_HEADS, HEAD_DIM)


def test_a_bias_in_one_layer_is_not_lost(monkeypatch) -> None:
    """The stacked product has no bias; a single layer with one makes all go layer by layer."""
    monkeypatch.setattr(context_projection, "can_dflash_slice_qkv_weight", lambda projection: (True, ""))
    attentions, hidden = [attention(1), attention(2, bias=True)], torch.randn(3, HIDDEN)
    project = ContextProjection(attentions)
    torch.testing.assert_close(project(hidden), expected(attentions, hidden))
    assert project.describe() == "projection=layer by layer (it has a bias)"


def test_new_weights_go_into_the_stacked_one() -> None:
    """A captured graph holds the stacked weight's address: it is overwritten, not replaced."""
    attentions, hidden = [attention(1), attention(2)], torch.randn(3, HIDDEN)
    project = ContextProjection(attentions)
    before = project._weight
    for each in attentions:
        each.qkv_proj.weight.data.mul_(3)
    project.refresh()
    assert project._weight is before
    torch.testing.assert_close(project(hidden), expected(attentions, hidden))
