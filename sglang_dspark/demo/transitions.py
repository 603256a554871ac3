"""Which token tends to follow which: the table that the target's embedding and the draft's Markov head both encode.

Each token has one main successor of weight 1 and up to three more of smaller weight, so that the context has something
sensible to choose from when it overrules the table.
"""

from __future__ import annotations

from collections import Counter

import tokenizers
import torch

from sglang_dspark.demo.corpus import TEXT
from sglang_dspark.demo.draw import Draw
from sglang_dspark.demo.spec import DemoSpec
from sglang_dspark.demo.tokenizer import special_token_ids

OTHERS = 3
OTHERS_WEIGHT = 0.55
SHORTEST_LOOP = 40


def transition_weights(spec: DemoSpec, tokenizer: tokenizers.Tokenizer) -> torch.Tensor:  # [V, V] float64
    """weights[u, v]: how strongly v follows u, at most 1; the main successor of u has exactly 1."""
    if spec.name == "tiny":
        return _ring(spec)
    return _counted(spec, tokenizer.encode(TEXT, add_special_tokens=False).ids)


def wrong_weights(spec: DemoSpec, weights: torch.Tensor) -> torch.Tensor:  # [V, V] float64
    """A table that never agrees with `weights` on a main successor."""
    usable = _usable(spec, weights)
    moved = torch.zeros_like(weights)
    moved[:, usable] = weights[:, usable.roll(1)]
    return moved


def _counted(spec: DemoSpec, tokens: list[int]) -> torch.Tensor:
    followers: dict[int, Counter[int]] = {token: Counter() for token in range(spec.vocab_size)}
    for token, successor in zip(tokens, tokens[1:], strict=False):
        followers[token][successor] += 1
    weights = torch.zeros(spec.vocab_size, spec.vocab_size, dtype=torch.float64)
    for token, main in _main_successors(spec, followers).items():
        others = [(successor, count) for successor, count in followers[token].most_common() if successor != main]
        for successor, count in others[:OTHERS]:
            weights[token, successor] = OTHERS_WEIGHT * min(1.0, count / max(1, followers[token][main]))
        weights[token, main] = 1.0
    return weights


def _main_successors(spec: DemoSpec, followers: dict[int, Counter[int]]) -> dict[int, int]:
    """The most frequent successor of each token that does not close a short loop: greedy text would never leave it."""
    usable = sorted(set(followers) - set(special_token_ids(spec)), key=lambda token: -followers[token].total())
    usable = [token for token in usable if followers[token]]
    # A token that the corpus never continues (a byte of another language, a special token) still needs a successor.
    spare = Draw(spec.seed, "transitions").integers("spare", spec.vocab_size, high=len(usable)).tolist()
    mains: dict[int, int] = {}
    for token in sorted(followers, key=lambda token: -followers[token].total()):
        ranked = [successor for successor, _ in followers[token].most_common()]
        ranked += usable[spare[token] :] + usable[: spare[token]]
        loops = ((_loop_length(mains, token, candidate), candidate) for candidate in ranked)
        free = next((candidate for length, candidate in loops if length == SHORTEST_LOOP), None)
        mains[token] = max(ranked, key=lambda c: _loop_length(mains, token, c)) if free is None else free
    return mains


def _loop_length(mains: dict[int, int], token: int, successor: int) -> int:
    """The length of the loop that token -> successor would close; SHORTEST_LOOP if it is as long or there is none."""
    for length in range(1, SHORTEST_LOOP):
        if successor == token:
            return length
        if successor not in mains:
            break
        successor = mains[successor]
    return SHORTEST_LOOP


def _ring(spec: DemoSpec) -> torch.Tensor:
    """The tokens in a drawn order, each followed by the next one or, more weakly, by the one after it."""
    banned = set(special_token_ids(spec))
    keys = Draw(spec.seed, "transitions").uniform("ring", spec.vocab_size, std=1.0).tolist()
    ring = sorted(set(range(spec.vocab_size)) - banned, key=lambda token: keys[token])
    weights = torch.zeros(spec.vocab_size, spec.vocab_size, dtype=torch.float64)
    for place, token in enumerate(ring + sorted(banned)):
        weights[token, ring[(place + 2) % len(ring)]] = OTHERS_WEIGHT
        weights[token, ring[(place + 1) % len(ring)]] = 1.0
    return weights


def _usable(spec: DemoSpec, weights: torch.Tensor) -> torch.Tensor:
    banned = set(special_token_ids(spec))
    return torch.tensor([v for v in torch.nonzero(weights.sum(0)).flatten().tolist() if v not in banned])
