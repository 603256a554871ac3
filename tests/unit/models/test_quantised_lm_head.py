"""A target whose LM head is stored quantised: the draft projects through the head's own method, not its bytes."""

from __future__ import annotations

import torch

from tests.unit.checkpoints.drafts import automodel
from tests.unit.models.test_minimax_m3_dspark import checkpoint, modules

HIDDEN, VOCABULARY = 48, 100


class PackedLinearMethod:
    """Two 4-bit values a byte and a scale a row, as NVFP4 and MXFP4 heads are: the weight is half as wide."""

    @staticmethod
    def unpacked(head: torch.nn.Module) -> torch.Tensor:
        low, high = head.weight & 15, head.weight >> 4
        return (torch.stack([low, high], dim=-1).flatten(1).float() - 8) * head.scale

    def apply(self, head: torch.nn.Module, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert bias is None
        return hidden @ self.unpacked(head).T


def packed_head() -> torch.nn.Module:
    head = torch.nn.Module()
    head.weight = torch.nn.Parameter(
        torch.randint(0, 256, (VOCABULARY, HIDDEN // 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)),
        requires_grad=False,
    )
    head.scale = torch.rand(VOCABULARY, 1, generator=torch.Generator().manual_seed(2))
    head.quant_method = PackedLinearMethod()
    head.org_vocab_size = VOCABULARY
    return head


def test_a_packed_head_is_asked_not_multiplied(build) -> None:
    """Fault 14: a matmul with the packed bytes has the wrong shape, or (worse) the wrong values."""
    model = build()
    model.load_weights(checkpoint(automodel()).items())
    head = packed_head()
    # The draft's copy cannot be compared with packed bytes; that must not be taken for another target's table.
    model.attach_shared_modules(embed_tokens=modules()["embed_tokens"], lm_head=head)
    hidden = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(3))
    logits, features = model.compute_base_logits(hidden)
    torch.testing.assert_close(logits, hidden @ PackedLinearMethod.unpacked(head).T)
    assert features is hidden
