"""The loss against plain loops, its gradients against finite differences in float64, its sums over parts of a batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sglang_dspark.reference import DSparkForwardOutput, LossWeights, compute_dspark_loss
from sglang_dspark.reference import loss as loss_module
from sglang_dspark.reference.loss import confidence_losses, cross_entropies, probability_distances

VOCAB, GAMMA = 7, 4


def outputs(seed: int = 0, batch: int = 3, dtype: torch.dtype = torch.float64) -> DSparkForwardOutput:
    torch.manual_seed(seed)
    lengths = torch.tensor([[4, 2], [1, 0], [3, 4]])[:batch]
    return DSparkForwardOutput(
        draft_logits=torch.randn(batch, 2, GAMMA, VOCAB, dtype=dtype) * 2,
        target_ids=torch.randint(0, VOCAB, (batch, 2, GAMMA)),
        eval_mask=torch.arange(GAMMA) < lengths.unsqueeze(-1),
        block_keep_mask=lengths > 0,
        confidence_pred=torch.randn(batch, 2, GAMMA, dtype=dtype),
        aligned_target_logits=torch.randn(batch, 2, GAMMA, VOCAB, dtype=dtype) * 2,
    )


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(x) for x in logits]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("decay", [None, 2.5])
def test_every_term_by_hand(decay) -> None:
    out = outputs()
    sums = {"cross_entropy": 0.0, "distance": 0.0, "confidence": 0.0, "confidence_error": 0.0, "confidence_bias": 0.0}
    total, lengths, blocks = 0.0, 0.0, 0
    kept, asked = [0.0] * GAMMA, [0] * GAMMA
    for b in range(3):
        for n in range(2):
            still = length = 1.0
            for k in range(GAMMA):
                if not out.eval_mask[b, n, k]:
                    break
                weight = 1.0 if decay is None else math.exp(-k / decay)
                draft, target = (softmax(x[b, n, k].tolist()) for x in (out.draft_logits, out.aligned_target_logits))
                distance = sum(abs(q - p) for q, p in zip(draft, target, strict=True))
                accepted = sum(min(q, p) for q, p in zip(draft, target, strict=True))  # Leviathan et al., lemma 3.3
                confidence = 1 / (1 + math.exp(-float(out.confidence_pred[b, n, k])))
                goal = accepted * math.log(confidence) + (1 - accepted) * math.log(1 - confidence)
                sums["cross_entropy"] -= weight * math.log(draft[int(out.target_ids[b, n, k])])
                sums["distance"] += weight * distance
                sums["confidence"] -= weight * goal
                sums["confidence_error"] += weight * abs(confidence - accepted)
                sums["confidence_bias"] += weight * (confidence - accepted)
                total += weight
                kept[k] += accepted
                asked[k] += 1
                still *= accepted
                length += still
            if out.eval_mask[b, n, 0]:
                lengths, blocks = lengths + length, blocks + 1
    found = compute_dspark_loss(out, decay_gamma=decay)
    for name, wanted in sums.items():
        assert float(getattr(found, name).value) == pytest.approx(wanted / total, rel=1e-6), name
        assert float(getattr(found, name).denominator) == pytest.approx(total, rel=1e-6), name
    wanted = (0.1 * sums["cross_entropy"] + 0.9 * sums["distance"] + sums["confidence"]) / total
    assert float(found.loss) == pytest.approx(wanted, rel=1e-6)
    assert found.acceptance.numerator.tolist() == pytest.approx(kept)
    assert found.acceptance.denominator.tolist() == asked
    assert float(found.accepted_length.value) == pytest.approx(lengths / blocks)


def test_gradient_of_cross_entropy() -> None:
    out = outputs()
    logits = out.draft_logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cross_entropies(x, out.target_ids), logits)


@pytest.mark.parametrize("slice_rows", [5, 1000], ids=["slices", "one_slice"])
def test_gradient_of_distance(slice_rows, monkeypatch) -> None:
    """Through the slices that are computed again on the way back."""
    monkeypatch.setattr(loss_module, "SLICE_ELEMENTS", slice_rows * VOCAB)
    out = outputs()
    logits = out.draft_logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: probability_distances(x, out.aligned_target_logits), logits)


def test_gradient_of_confidence() -> None:
    out = outputs()
    accepted = torch.rand(3, 2, GAMMA, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: confidence_losses(x, accepted), out.confidence_pred.requires_grad_())


@pytest.mark.parametrize("part", ["draft_logits", "confidence_pred"])
def test_gradient_of_the_whole(part) -> None:
    """With the confidence term left out for the draft's logits: its goal is held still on purpose."""
    out = outputs()
    weights = LossWeights(confidence=0.0) if part == "draft_logits" else LossWeights()
    value = getattr(out, part).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: compute_dspark_loss(replace(out, **{part: x}), decay_gamma=2.0, weights=weights).loss, value
    )


def test_what_gets_no_gradient() -> None:
    """The target's logits come from the shared head, and the draft must not lower its own confidence's goal."""
    out = outputs()
    target, draft = out.aligned_target_logits.requires_grad_(), out.draft_logits.requires_grad_()
    out.confidence_pred.requires_grad_()
    loss = compute_dspark_loss(out, weights=LossWeights(0.0, 0.0, 1.0)).loss
    gradients = torch.autograd.grad(loss, [target, draft], allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    rows, target_rows = torch.autograd.grad(compute_dspark_loss(out).loss, [draft, target], allow_unused=True)
    assert torch.equal(rows.abs().sum(-1) > 0, out.eval_mask)
    assert target_rows is None or not target_rows.any()


def test_slices_change_nothing(monkeypatch) -> None:
    out = outputs()
    whole = probability_distances(out.draft_logits, out.aligned_target_logits)
    monkeypatch.setattr(loss_module, "SLICE_ELEMENTS", 2 * VOCAB + 1)
    torch.testing.assert_close(probability_distances(out.draft_logits, out.aligned_target_logits), whole)


def test_parts_of_a_batch_add_up_to_the_batch() -> None:
    """Means of means would not: the second sequence has one supervised row, the others ten."""
    out = outputs()

    def part(row: int) -> DSparkForwardOutput:
        fields = {name: value[row : row + 1] for name, value in vars(out).items()}
        return DSparkForwardOutput(**fields)

    whole = compute_dspark_loss(out, decay_gamma=3.0)
    parts = [compute_dspark_loss(part(row), decay_gamma=3.0) for row in range(3)]
    for name in ("cross_entropy", "distance", "confidence", "acceptance", "accepted_length", "confidence_bias"):
        first, second, third = (getattr(one, name) for one in parts)
        torch.testing.assert_close((first + second + third).value, getattr(whole, name).value)
    mean_of_means = sum(one.cross_entropy.value for one in parts) / 3
    assert abs(mean_of_means - whole.cross_entropy.value) > 0.01


def test_bf16_logits_are_compared_in_float32() -> None:
    out = outputs(dtype=torch.bfloat16)
    exact = replace(
        out,
        draft_logits=out.draft_logits.float(),
        aligned_target_logits=out.aligned_target_logits.float(),
        confidence_pred=out.confidence_pred.float(),
    )
    found, wanted = compute_dspark_loss(out), compute_dspark_loss(exact)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, wanted.loss)


def test_without_target_logits_only_cross_entropy_can_be_asked_for() -> None:
    out = replace(outputs(), aligned_target_logits=None, confidence_pred=None)
    found = compute_dspark_loss(out, weights=LossWeights(1.0, 0.0, 0.0))
    assert float(found.loss) == pytest.approx(float(found.cross_entropy.value))
    assert not found.acceptance.denominator.any() and found.acceptance.value.shape == (GAMMA,)
    with pytest.raises(ValueError, match="pass target_last_hidden_states"):
        compute_dspark_loss(out)


@pytest.mark.parametrize("decay", [0, -1.0])
def test_a_decay_that_means_nothing_is_refused(decay) -> None:
    with pytest.raises(ValueError, match="asked for decay_gamma"):
        compute_dspark_loss(outputs(), decay_gamma=decay)
