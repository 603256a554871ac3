"""Verifying a sampled draft: distributed as the target's own samples, whatever the draft proposes, and written where
SGLang's kernel writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_dspark.serving.cpu.sampling import around_chain_speculative_sampling

UNTOUCHED = -7


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("SGLang's own kernel was called")


def verify(
    candidates: torch.Tensor,  # [B, W]
    target: torch.Tensor,  # [B, W, V]
    draft: torch.Tensor,  # [B, W - 1, V]
    coins: torch.Tensor,  # [B, W]
    final_coins: torch.Tensor,  # [B]
    slots: torch.Tensor | None = None,  # [B, W]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, width = candidates.shape
    if slots is None:
        slots = torch.arange(batch * width).view(batch, width)
    predicts = torch.full((batch * width,), UNTOUCHED, dtype=torch.int32)
    index = torch.full((batch, width), UNTOUCHED, dtype=torch.int32)
    number = torch.full((batch,), UNTOUCHED, dtype=torch.int32)
    around_chain_speculative_sampling(
        never, predicts, index, number, candidates, slots, None, None, coins, final_coins, target, draft, 1.0, 1.0, True
    )
    return predicts, index, number


def slow(
    candidates: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    slots: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same from algorithm 1 of Leviathan et al. and the outputs that SGLang's callers read, one request at a time:
    the token emitted behind candidate j lies at candidate j's slot."""
    batch, width = candidates.shape
    predicts = torch.full((batch * width,), UNTOUCHED, dtype=torch.int32)
    index = torch.full((batch, width), UNTOUCHED, dtype=torch.int32)
    number = torch.full((batch,), UNTOUCHED, dtype=torch.int32)
    for b in range(batch):
        accepted = 0
        while accepted < width - 1:
            token = int(candidates[b, accepted + 1])
            p, q = float(target[b, accepted, token]), float(draft[b, accepted, token])
            if not (0 < q <= 1 and float(coins[b, accepted]) * q < p):
                break
            predicts[slots[b, accepted]] = token
            accepted += 1
        weights = [float(p) for p in target[b, accepted]]
        if accepted < width - 1:
            weights = [max(p - float(q), 0.0) for p, q in zip(weights, draft[b, accepted], strict=True)]
        threshold, running, drawn = float(final_coins[b]) * sum(weights), 0.0, None
        for token, weight in enumerate(weights):
            running += weight
            if running > threshold:
                drawn = token
                break
        predicts[slots[b, accepted]] = drawn
        index[b, : accepted + 1] = slots[b, : accepted + 1]
        number[b] = accepted
    return predicts, index, number


def random_case(batch: int, width: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, width, vocabulary, generator=generator).mul(1.5).softmax(-1)
    draft = (target[:, :-1].log() + torch.randn(batch, width - 1, vocabulary, generator=generator)).softmax(-1)
    anchor = torch.zeros(batch, 1, dtype=torch.long)
    drafted = torch.multinomial(draft.flatten(0, 1), 1, generator=generator).view(batch, width - 1)
    coins, final = torch.rand(batch, width, generator=generator), torch.rand(batch, generator=generator)
    return torch.cat([anchor, drafted], 1), target, draft, coins, final


@pytest.mark.parametrize("width", [2, 5, 8])
def test_the_outputs_are_those_of_the_algorithm(width: int) -> None:
    """A token written at its own slot instead of the one before it, or an untouched entry overwritten, garbles text."""
    case = random_case(200, width, 11, seed=width)
    slots = torch.randperm(200 * width, generator=torch.Generator().manual_seed(3)).view(200, width)
    found, expected = verify(*case, slots), slow(*case, slots)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    # Every number of accepted tokens occurs, so every branch was compared.
    assert set(expected[2].tolist()) == set(range(width))


def test_the_kernel_s_padding_rows() -> None:
    """Padded columns have no draft probability: 0, or NaN and infinity left in the buffer. They are never accepted,
    and the next token is the target's own."""
    target = torch.full((4, 3, 3), 1 / 3)
    draft = torch.zeros(4, 2, 3)
    draft[1], draft[2], draft[3] = float("nan"), float("inf"), -1.0
    candidates, coins = torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 3)
    predicts, index, number = verify(candidates, target, draft, coins, torch.full((4,), 0.5))
    assert number.tolist() == [0, 0, 0, 0]
    assert predicts.view(4, 3).tolist() == [[1, UNTOUCHED, UNTOUCHED]] * 4
    assert index.tolist() == [[row * 3, UNTOUCHED, UNTOUCHED] for row in range(4)]


def test_point_masses() -> None:
    """A greedy draft's probabilities are 0 and 1: right, it is always accepted; wrong, the target's token follows."""
    one_hot = torch.eye(4)
    target = one_hot[torch.tensor([[2, 3, 1], [2, 3, 1], [2, 3, 1]])]
    candidates = torch.tensor([[0, 2, 3], [0, 2, 0], [0, 1, 3]])
    coins = torch.full((3, 3), 0.999)
    predicts, _, number = verify(candidates, target, one_hot[candidates[:, 1:]], coins, torch.full((3,), 0.999))
    assert number.tolist() == [2, 1, 0]
    assert predicts.view(3, 3).tolist() == [[2, 3, 1], [2, 3, UNTOUCHED], [2, UNTOUCHED, UNTOUCHED]]


def test_a_token_the_target_never_says_is_not_accepted() -> None:
    """With a coin of exactly 0, `coin * q <= p` would let it through."""
    target, draft = torch.tensor([[[0.0, 1.0]] * 2]), torch.tensor([[[0.5, 0.5]]])
    predicts, _, number = verify(torch.tensor([[0, 0]]), target, draft, torch.zeros(1, 2), torch.zeros(1))
    assert number.tolist() == [0] and predicts.tolist() == [1, UNTOUCHED]


@pytest.mark.parametrize("coin", [1 - 2**-24, 1.0])
def test_the_last_coin_draws_the_last_token_with_weight(coin: float) -> None:
    """Rounding of the cumulative sum may leave no token behind the coin: neither the first token, nor the last of the
    vocabulary, may be drawn without any weight."""
    target = torch.tensor([[[0.0, 0.3, 0.7, 0.0], [0.0, 0.25, 0.75, 0.0]]])
    draft = torch.tensor([[[0.0, 0.0, 1.0, 0.0]]])
    for first_coin, accepted, expected in ((0.99, 0, 1), (0.0, 1, 2)):
        coins = torch.full((1, 2), first_coin)
        predicts, _, number = verify(torch.tensor([[0, 2]]), target, draft, coins, torch.tensor([coin]))
        assert number.tolist() == [accepted]
        assert predicts[accepted] == expected


def total_variation(tokens: torch.Tensor, exact: torch.Tensor) -> float:
    counts = torch.bincount(tokens.long(), minlength=exact.numel()).double()
    return float((counts / counts.sum() - exact.double()).abs().sum() / 2)


# Expected total variation of 40,000 draws from 6 tokens is about sqrt(6 / (2 pi 40000)) = 0.005; five times that is
# never reached by chance. The draft differs from the target by more than 0.3.
DRAWS, BOUND = 40_000, 0.02
FIRST = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])
DRAFTS = {
    "wrong": torch.tensor([[0.05, 0.05, 0.1, 0.1, 0.3, 0.4], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]]),
    "point mass": torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]]),
    "uniform": torch.full((2, 6), 1 / 6),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_the_samples_are_the_target_s(name: str) -> None:
    """Lossless at any temperature, with a draft that is deliberately wrong: the first and the second emitted token have
    the target's exact distribution. Drawing the bonus from p instead of p - q after a rejection fails this."""
    generator = torch.Generator().manual_seed(11)
    draft = DRAFTS[name]
    # The target's second distribution depends on the first token, as a language model's does.
    second = torch.randn(6, 6, generator=generator).mul(1.5).softmax(-1)
    drafted = torch.stack([torch.multinomial(q, DRAWS, replacement=True, generator=generator) for q in draft], 1)
    candidates = torch.cat([torch.zeros(DRAWS, 1, dtype=torch.long), drafted], 1)
    third = torch.full((DRAWS, 6), 1 / 6)
    target = torch.stack([FIRST.expand(DRAWS, 6), second[drafted[:, 0]], third], 1)
    coins, final = torch.rand(DRAWS, 3, generator=generator), torch.rand(DRAWS, generator=generator)
    predicts, _, number = verify(candidates, target, draft.expand(DRAWS, 2, 6), coins, final)

    emitted = predicts.view(DRAWS, 3)
    assert total_variation(emitted[:, 0], FIRST) < BOUND
    # A second token is emitted in this step where the first was accepted; it depends on that first one alone.
    for first in range(5):
        rows = (number >= 1) & (emitted[:, 0] == first)
        if rows.sum() >= 2000:
            noise = (6 / (2 * torch.pi * float(rows.sum()))) ** 0.5
            assert total_variation(emitted[rows, 1], second[first]) < 4 * noise
    # The draft really is wrong, and the test really saw rejections and acceptances.
    assert 0.3 < float((draft[0] - FIRST).abs().sum() / 2)
    assert {0, 1, 2} == set(number.tolist())


def test_block_verification_is_refused() -> None:
    """Ignored, the acceptance rule would be another than asked for."""
    case = [torch.zeros(1, 2, dtype=torch.long)] * 12
    with pytest.raises(NotImplementedError, match="block verification is not available on the CPU"):
        around_chain_speculative_sampling(never, *case, 1.0, True, block_verification=True)


def test_a_gpu_batch_goes_to_sglang() -> None:
    """With every argument, block verification included."""
    seen = []
    values = [torch.zeros(1, 2, device="meta")] * 11
    around_chain_speculative_sampling(
        lambda *args, **kwargs: seen.append((args, kwargs)), *values, 1.0, 0.5, True, block_verification=True
    )
    ((args, kwargs),) = seen
    assert args == (*values, 1.0, 0.5, True) and kwargs == {"block_verification": True}
