"""The training forward and the loss, beside AutoModel's own: same weights, same batch, same seed.

Bound: 1e-5 absolute in float32 for logits of size 10, the project's promise. On the CPU both do the same operations
in the same order and every difference measured is zero; the bound is for other machines' matrix products.
"""

from __future__ import annotations

import pytest
import torch
from nemo_automodel.components.speculative.dspark.core import DSparkTrainerModule
from nemo_automodel.components.speculative.dspark.loss import compute_dspark_loss as peer_loss

from sglang_dspark.reference import compute_dspark_loss

from .peers import batch, both, same_draws

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
HEADS = ("vanilla", "gated", "rnn")
PEER_WEIGHTS = {"ce_loss_alpha": 0.1, "l1_loss_alpha": 0.9, "confidence_head_alpha": 1.0}


def forwards(inputs, **changes):
    peer, ours = both(**changes)
    return same_draws(lambda: peer(**inputs)), same_draws(lambda: ours(**inputs))


def agree(theirs, mine):
    for name in ("target_ids", "eval_mask", "block_keep_mask"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    for name in ("draft_logits", "confidence_pred", "aligned_target_logits"):
        found, wanted = getattr(mine, name), getattr(theirs, name)
        assert (found is None) == (wanted is None), name
        if wanted is not None:
            torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("with_markov", [True, False], ids=["confidence_reads_markov", "confidence_reads_hidden"])
@pytest.mark.parametrize("head", HEADS)
def test_forward(head, with_markov):
    """Catches a bias from the wrong token, a state that leaks between blocks, a mask or position off by one."""
    agree(*forwards(batch(), markov_head_type=head, confidence_head_with_markov=with_markov))


@pytest.mark.parametrize("case", ["no_confidence", "no_target_logits", "one_row_blocks", "more_anchors_than_tokens"])
def test_forward_at_its_edges(case):
    inputs, changes = batch(), {}
    if case == "no_confidence":
        changes["confidence_head_alpha"] = 0.0
    if case == "no_target_logits":
        inputs["target_last_hidden_states"] = None
    if case == "one_row_blocks":
        changes["block_size"] = 1
    if case == "more_anchors_than_tokens":
        changes["num_anchors"] = 70
    theirs, mine = forwards(inputs, **changes)
    agree(theirs, mine)
    assert mine.eval_mask.any() and not mine.eval_mask.all()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_forward_of_the_shortest_sequences(length):
    """Catches an index that assumes room for one anchor, and a row of attention without any key (NaN)."""
    theirs, mine = forwards(batch(length=length, sequences=1))
    agree(theirs, mine)
    assert mine.draft_logits.isfinite().all()


@pytest.mark.parametrize("seed", range(5))
def test_anchors_follow_the_seed(seed):
    """One seed, one set of anchors: the labels say where the blocks are."""
    peer, ours = both()
    inputs = batch(seed=seed)
    theirs, mine = (same_draws(lambda m=m: m(**inputs), seed=seed) for m in (peer, ours))
    other = same_draws(lambda: ours(**inputs), seed=seed + 100)
    assert torch.equal(mine.target_ids, theirs.target_ids)
    assert not torch.equal(mine.target_ids, other.target_ids)


@pytest.mark.parametrize("decay", [None, 4.0], ids=["flat", "decay4"])
@pytest.mark.parametrize("head", HEADS)
def test_loss_and_gradients(head, decay):
    """The value, what it is logged by, and what training gets: every parameter's gradient."""
    peer, ours = both(markov_head_type=head)
    inputs = batch()
    theirs, mine = (same_draws(lambda m=m: m(**inputs)) for m in (peer, ours))
    wanted, terms = peer_loss(outputs=theirs, loss_decay_gamma=decay, return_terms=True, **PEER_WEIGHTS)
    found = compute_dspark_loss(mine, decay_gamma=decay)
    pairs = {
        "ce_loss": found.cross_entropy.value,
        "l1_loss": found.distance.value,
        "confidence_loss": found.confidence.value,
        "accept_rate_per_pos_num": found.acceptance.numerator,
        "accept_rate_per_pos_den": found.acceptance.denominator,
        "tau_num": found.accepted_length.numerator,
        "tau_den": found.accepted_length.denominator,
        "confidence_abs_error_num": found.confidence_error.numerator,
        "confidence_bias_num": found.confidence_bias.numerator,
        "confidence_diag_den": found.confidence_bias.denominator,
    }
    torch.testing.assert_close(found.loss, wanted, **CLOSE)
    for name, value in pairs.items():
        torch.testing.assert_close(value, terms[name], **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
    wanted.backward()
    found.loss.backward()
    gradients = dict(ours.named_parameters())
    for name, parameter in peer.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad, **CLOSE)
        assert parameter.grad.abs().sum() > 0, name


def test_a_batch_without_supervision_costs_nothing():
    inputs = batch()
    inputs["loss_mask"] = torch.zeros_like(inputs["loss_mask"])
    theirs, mine = forwards(inputs)
    agree(theirs, mine)
    wanted = peer_loss(outputs=theirs, loss_decay_gamma=4.0, **PEER_WEIGHTS)
    assert compute_dspark_loss(mine, decay_gamma=4.0).loss == wanted == 0


def test_automodel_trains_our_model():
    """Its trainer module around our draft: the same metrics as around its own."""
    peer, ours = both()
    inputs = batch()
    theirs, mine = (
        same_draws(lambda m=m: DSparkTrainerModule(m, loss_decay_gamma=4.0)(**inputs)) for m in (peer, ours)
    )
    for name, wanted in vars(theirs).items():
        torch.testing.assert_close(getattr(mine, name), wanted, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def test_our_loss_reads_automodel_outputs():
    peer, _ = both()
    outputs = same_draws(lambda: peer(**batch()))
    wanted = peer_loss(outputs=outputs, loss_decay_gamma=None, **PEER_WEIGHTS)
    torch.testing.assert_close(compute_dspark_loss(outputs).loss, wanted, **CLOSE)


@pytest.mark.parametrize("what", ["seed", "weights", "theta"])
def test_a_difference_would_be_seen(what):
    """The comparisons above can fail."""
    peer, ours = both()
    inputs = batch()
    theirs = same_draws(lambda: peer(**inputs))
    if what == "weights":
        with torch.no_grad():
            ours.layers[1].self_attn.k_norm.weight[3] += 0.01
    if what == "theta":
        ours.rotary_emb.theta *= 1.01
        ours.to("cpu")  # computes the frequencies again
    mine = same_draws(lambda: ours(**inputs), seed=8 if what == "seed" else 7)
    with pytest.raises(AssertionError):
        agree(theirs, mine)
