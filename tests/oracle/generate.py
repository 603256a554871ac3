"""Decoding loops over the oracle models: plain greedy, speculative greedy, and exact sampling probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import torch

from tests.oracle.draft import Draft
from tests.oracle.target import Cache, Target


@dataclass(frozen=True)
class Result:
    """tokens: what was generated. The rest has one entry a verify round.

    accepted_per_round counts as SGLang does: the accepted proposals and the bonus token, also in the last round, whose
    end max_new_tokens may cut off. The first token comes from the prompt's own forward pass and belongs to no round.
    """

    tokens: list[int]
    accepted_per_round: list[int] = field(default_factory=list)
    proposals_per_round: list[list[int]] = field(default_factory=list)
    anchors_per_round: list[int] = field(default_factory=list)

    @property
    def accepted_length(self) -> float:
        """The mean over rounds, as in SGLang's log line "accept len" and its avg_spec_accept_length."""
        return sum(self.accepted_per_round) / len(self.accepted_per_round)

    @property
    def tokens_per_round(self) -> float:
        """What a request's meta_info calls spec_accept_length: its completion tokens by its verify rounds."""
        return len(self.tokens) / len(self.accepted_per_round)


def greedy(target: Target, prompt_ids: list[int], max_new_tokens: int) -> list[int]:
    """One token a forward pass."""
    cache, tokens, step = Cache(), [], prompt_ids
    for _ in range(max_new_tokens):
        tokens.append(int(target.forward(step, cache).logits[-1].argmax()))
        step = tokens[-1:]
    return tokens


def speculative_greedy(
    target: Target, draft: Draft, prompt_ids: list[int], max_new_tokens: int, gamma: int | None = None
) -> Result:
    """Propose gamma tokens, verify them in one forward pass, keep the right ones and the target's own next token."""
    draft.reset()
    cache = Cache()
    prompt = target.forward(prompt_ids, cache)
    draft.append_context(prompt.layer_outputs)
    result = Result([int(prompt.logits[-1].argmax())])
    while len(result.tokens) < max_new_tokens:
        anchor = result.tokens[-1]
        proposals = draft.propose(anchor, gamma).tokens
        start = cache.length
        verified = target.forward([anchor, *proposals], cache)
        answers = verified.logits.argmax(-1).tolist()
        right = next((i for i, token in enumerate(proposals) if token != answers[i]), len(proposals))
        cache.truncate(start + 1 + right)
        draft.append_context(verified.layer_outputs[:, : 1 + right])
        result.tokens.extend(answers[: right + 1])
        result.accepted_per_round.append(right + 1)
        result.proposals_per_round.append(proposals)
        result.anchors_per_round.append(anchor)
    del result.tokens[max_new_tokens:]
    return result


def exact_distribution(target: Target, prompt_ids: list[int], length: int, temperature: float = 1.0) -> torch.Tensor:
    """The probability of every continuation of this length, as a tensor indexed by its tokens: [V] * length."""
    vocab_size = target.config["vocab_size"]
    prompt_cache = Cache()
    logits = target.forward(prompt_ids, prompt_cache).logits[-1]
    joint = torch.softmax(logits.double() / temperature, -1)
    for depth in range(1, length):
        rows = []
        for continuation in product(range(vocab_size), repeat=depth):
            cache = prompt_cache.copy()
            logits = target.forward(list(continuation), cache).logits[-1]
            rows.append(torch.softmax(logits.double() / temperature, -1))
        joint = joint.unsqueeze(-1) * torch.stack(rows).view(*[vocab_size] * depth, vocab_size)
    return joint
