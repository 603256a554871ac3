"""Speculative sampling gives the target's distribution, whatever the draft proposes: many rows in one call."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.reference.sampling import probabilities, sample_tokens, verify_block

VOCAB, ROWS = 5, 200_000


def distributions(seed: int, count: int) -> torch.Tensor:  # [count, V]
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(1.5 * torch.randn(count, VOCAB, generator=generator, dtype=torch.float64), -1)


def noise(wanted: torch.Tensor, draws: int) -> float:
    """How far the frequencies of so many true draws are from their distribution, at most, in 100 simulations."""
    generator = torch.Generator().manual_seed(99)
    counts = torch.multinomial(wanted.flatten().expand(100, -1), draws, True, generator=generator)
    frequencies = torch.stack([row.bincount(minlength=wanted.numel()) for row in counts]) / draws
    return float((frequencies - wanted.flatten()).abs().sum(-1).max())


def run(target: torch.Tensor, draft: torch.Tensor, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Proposals drawn independently from the draft's rows, then verified."""
    generator = torch.Generator().manual_seed(5)
    proposals = torch.multinomial(draft, rows, True, generator=generator).T.contiguous()
    kept, following = verify_block(target.expand(rows, -1, -1), draft.expand(rows, -1, -1), proposals, generator)
    return proposals, kept, following


def test_every_token_is_distributed_as_the_target_s() -> None:
    """The first token, the one after a kept proposal, and the bonus after two; the rows are independent.

    Catches acceptance by p / q upside down, a residual that is not rescaled or is taken from the wrong row, and a
    bonus drawn from the draft.
    """
    target, draft = distributions(1, 3), distributions(2, 2)
    proposals, kept, following = run(target, draft)
    for row in range(3):
        reached = kept >= row
        tokens = following if row == 2 else torch.where(kept > row, proposals[:, row], following)
        found = tokens[reached].bincount(minlength=VOCAB) / int(reached.sum())
        assert (found - target[row]).abs().sum() < noise(target[row], int(reached.sum())), row


def test_the_rate_of_acceptance_is_one_minus_half_the_distance() -> None:
    target, draft = distributions(1, 3), distributions(2, 2)
    _, kept, _ = run(target, draft)
    rate = 1 - (target[0] - draft[0]).abs().sum() / 2
    assert abs(float((kept > 0).double().mean()) - float(rate)) < 4 * 0.5 / ROWS**0.5


def test_another_target_would_be_seen() -> None:
    target, draft = distributions(1, 3), distributions(2, 2)
    proposals, kept, following = run(target, draft)
    found = torch.where(kept > 0, proposals[:, 0], following).bincount(minlength=VOCAB) / ROWS
    for wrong in (draft[0], 0.98 * target[0] + 0.02 * draft[0]):
        assert (found - wrong).abs().sum() > noise(target[0], ROWS)


def test_equal_distributions_keep_everything() -> None:
    same = distributions(3, 4)
    _, kept, following = run(same, same[:3], 20_000)
    assert (kept == 3).all()
    assert (following.bincount(minlength=VOCAB) / 20_000 - same[3]).abs().sum() < noise(same[3], 20_000)


def test_a_token_the_target_never_says_is_never_kept() -> None:
    target, draft = distributions(1, 2), distributions(2, 1)
    target[0, 3] = 0
    proposals, kept, following = run(target, draft, 20_000)
    assert not (kept[proposals[:, 0] == 3]).any() and (proposals[:, 0] == 3).any()
    assert not (following[kept == 0] == 3).any()


def test_greedy_keeps_while_equal_and_then_corrects() -> None:
    choices = torch.tensor([2, 0, 4, 1])
    target = torch.nn.functional.one_hot(choices, VOCAB).float().unsqueeze(0)
    for proposals, kept, following in (([2, 0, 4], 3, 1), ([2, 0, 3], 2, 4), ([1, 0, 4], 0, 2)):
        asked = torch.tensor([proposals])
        draft = torch.nn.functional.one_hot(asked, VOCAB).float()
        assert [int(x) for x in verify_block(target, draft, asked)] == [kept, following]


def test_probabilities_at_zero_are_certain_of_the_first_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, -1.0, 5.0]])
    assert probabilities(logits, 0.0).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert sample_tokens(logits, 0.0).tolist() == [1, 3]
    torch.testing.assert_close(probabilities(logits, 2.0), torch.softmax(logits / 2, -1))


def test_a_negative_temperature_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for temperature -1"):
        sample_tokens(torch.zeros(1, 3), -1.0)


def test_sampling_follows_its_generator() -> None:
    logits = torch.zeros(1, 50, 1000)
    first, again, other = (sample_tokens(logits, 1.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
