"""Drafting step by step beside AutoModel's draft: sampled tokens, corrected logits, confidence."""

from __future__ import annotations

import pytest
import torch

from .peers import HIDDEN, LAYERS, VOCAB, both, same_draws

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def rows(gamma: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "hidden": torch.randn(4, gamma, HIDDEN, generator=generator),
        "logits": torch.randn(4, gamma, VOCAB, generator=generator),
        "previous": torch.randint(0, VOCAB, (4,), generator=generator),
    }


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.7, 1.0])
@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_sample_draft_tokens(head, temperature):
    inputs = rows()
    results = [
        same_draws(
            lambda model=model: model.sample_draft_tokens(
                inputs["logits"],
                first_prev_token_ids=inputs["previous"],
                temperature=temperature,
                hidden_states=inputs["hidden"],
            )
        )
        for model in both(markov_head_type=head)
    ]
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[1][1], results[0][1], **CLOSE)


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_sample_draft_token_step(head):
    """For an rnn head one step by itself starts from the zero state, in both."""
    inputs = rows()
    results = [
        model.sample_draft_token_step(
            inputs["logits"][:, 2], prev_token_ids=inputs["previous"], hidden_states=inputs["hidden"][:, 2]
        )
        for model in both(markov_head_type=head)
    ]
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[1][1], results[0][1], **CLOSE)


def test_the_vanilla_head_needs_no_hidden_states():
    inputs = rows()
    results = [model.sample_draft_tokens(inputs["logits"], first_prev_token_ids=inputs["previous"]) for model in both()]
    assert torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize("with_markov", [True, False])
def test_predict_confidence_step(with_markov):
    inputs = rows()
    found = [
        model.predict_confidence_step(inputs["hidden"][:, 0], inputs["previous"])
        for model in both(confidence_head_with_markov=with_markov)
    ]
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_no_rows_no_tokens():
    inputs = rows(gamma=0)
    for model in both():
        tokens, logits = model.sample_draft_tokens(inputs["logits"], first_prev_token_ids=inputs["previous"])
        assert tokens.shape == (4, 0) and tokens.dtype == torch.long and logits.shape == (4, 0, VOCAB)


@pytest.mark.parametrize("context", [1, 19])
def test_one_block_against_the_backbone(context):
    """`draft_block` on a kept context is AutoModel's backbone over context and block at once."""
    peer, ours = both()
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(1, context, HIDDEN * len(LAYERS), generator=generator)
    anchor = torch.tensor([17])
    with torch.no_grad():
        block = peer.embed_tokens(torch.tensor([[17] + [peer.mask_token_id] * 4]))
        wanted = peer._forward_backbone(
            position_ids=torch.arange(context + 5).unsqueeze(0), noise_embedding=block, target_hidden_states=features
        )
        # In two pieces, as verification brings them.
        cut = context // 2
        pieces = [(0, cut), (cut, context)] if cut else [(0, context)]
        kept = [
            ours.context_keys_values(features[:, start:end], torch.arange(start, end).unsqueeze(0))
            for start, end in pieces
        ]
        joined = [
            tuple(torch.cat(parts, dim=1) for parts in zip(*layer, strict=True)) for layer in zip(*kept, strict=True)
        ]
        found = ours.draft_block(anchor, joined)
    torch.testing.assert_close(found, wanted, **CLOSE)
