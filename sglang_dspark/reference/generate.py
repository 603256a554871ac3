"""Lossless speculative generation, one sequence, block by block: the oracle for the server.

A round: the draft proposes gamma tokens after the anchor (the last token there is), the target reads anchor and
proposals in one pass, a prefix of the proposals is kept and one more token comes from the target. At temperature 0 the
result is the target's greedy continuation; above, it is distributed as the target's own samples, whatever the draft
proposes (Leviathan et al. 2023, theorem 1). The draft only decides how many rounds it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from sglang_dspark.reference.layers import KeysValues
from sglang_dspark.reference.loss import Ratio
from sglang_dspark.reference.model import MiniMaxM3DSparkModel
from sglang_dspark.reference.sampling import probabilities, sample_tokens, verify_block
from sglang_dspark.reference.target import HuggingFaceTarget, Target


@dataclass(frozen=True)
class Proposal:
    """What the draft proposes after one anchor."""

    tokens: torch.Tensor  # [gamma] int64
    logits: torch.Tensor  # [gamma, V], Markov bias included
    confidence: torch.Tensor | None  # [gamma], the probability that the token is kept, given all before were


@dataclass(frozen=True)
class Round:
    """One verify round: the anchor, what was proposed, and how many of the proposals were kept."""

    anchor: int
    proposals: tuple[int, ...]
    kept: int
    confidence: tuple[float, ...] | None


@dataclass(frozen=True)
class Generation:
    """What was generated, and how. The first token comes from the prompt's own pass and belongs to no round.

    Rounds are counted whole, also the last one, whose end a limit or an end token may have cut off: that is how SGLang
    counts.
    """

    tokens: list[int]
    rounds: list[Round] = field(default_factory=list)

    @property
    def accepted_per_round(self) -> list[int]:
        """Tokens that each round yielded, the target's own included."""
        return [one.kept + 1 for one in self.rounds]

    @property
    def proposals_per_round(self) -> list[list[int]]:
        """What was proposed in each round."""
        return [list(one.proposals) for one in self.rounds]

    @property
    def accepted_length(self) -> Ratio:
        """The mean of `accepted_per_round`, as a ratio that adds up over generations."""
        return Ratio(torch.tensor(float(sum(self.accepted_per_round))), torch.tensor(float(len(self.rounds))))

    @property
    def acceptance(self) -> Ratio:
        """How often each row's proposal was kept, of the rounds in which all before it were. [gamma]"""
        rows = range(max((len(one.proposals) for one in self.rounds), default=0))
        kept = [sum(one.kept > row for one in self.rounds) for row in rows]
        asked = [sum(one.kept >= row and len(one.proposals) > row for one in self.rounds) for row in rows]
        return Ratio(torch.tensor(kept).float(), torch.tensor(asked).float())


class DraftSession:
    """The draft on one sequence, with the keys and values of the context kept."""

    def __init__(self, model: MiniMaxM3DSparkModel, block_size: int | None = None) -> None:
        self.model, self.block_size = model, block_size or model.block_size
        self.context: list[KeysValues] | None = None
        self.length = 0

    @torch.no_grad()
    def append(self, features: torch.Tensor) -> None:  # [T, K * H]
        """Take the target's features of the T tokens that follow those seen so far."""
        weight = self.model.fc.weight
        features = features.to(weight.device, weight.dtype).unsqueeze(0)
        positions = torch.arange(self.length, self.length + features.shape[1], device=weight.device).unsqueeze(0)
        new = self.model.context_keys_values(features, positions)
        if self.context is not None:
            pairs = zip(self.context, new, strict=True)
            new = [(torch.cat([k, more_k], 1), torch.cat([v, more_v], 1)) for (k, v), (more_k, more_v) in pairs]
        self.context, self.length = new, self.length + features.shape[1]

    @torch.no_grad()
    def propose(self, anchor: int, temperature: float = 0.0, generator: torch.Generator | None = None) -> Proposal:
        """Choose the gamma tokens after the anchor, which stands right behind the context.

        Raises:
            ValueError: there is no context yet.
        """
        if self.context is None:
            raise ValueError("asked for proposals without a context; append the target's features of the prompt first")
        model = self.model
        anchors = torch.tensor([anchor], device=model.fc.weight.device)
        hidden = model.draft_block(anchors, self.context, self.block_size)
        tokens, logits = model.sample_draft_tokens(
            model.compute_logits(hidden),
            first_prev_token_ids=anchors,
            temperature=temperature,
            hidden_states=hidden,
            generator=generator,
        )
        previous = torch.cat([anchors.unsqueeze(1), tokens[:, :-1]], dim=1)
        confidence = model.predict_confidence_step(hidden, previous)
        return Proposal(tokens[0], logits[0], None if confidence is None else confidence[0].sigmoid())


@torch.no_grad()
def generate(
    draft: MiniMaxM3DSparkModel,
    target: Target | nn.Module,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    block_size: int | None = None,
    end_token_ids: Collection[int] = (),
    generator: torch.Generator | None = None,
) -> Generation:
    """Continue the prompt.

    Args:
        draft: the draft model.
        target: a `Target`, or a transformers causal LM.
        prompt_ids: at least one token.
        max_new_tokens: how many tokens to generate at most.
        temperature: 0 is greedy.
        block_size: proposals a round; the draft's own block size unless given.
        end_token_ids: generation stops after one of these.
        generator: of the random draws, on the draft's device; torch's global one unless given.

    Raises:
        ValueError: an empty prompt, or a limit below 1.
    """
    if not len(prompt_ids) or max_new_tokens < 1 or (block_size is not None and block_size < 1):
        raise ValueError(
            f"asked for {max_new_tokens} tokens after a prompt of {len(prompt_ids)} with block_size {block_size}; "
            "give a prompt and take 1 or more of each"
        )
    model = HuggingFaceTarget(target) if isinstance(target, nn.Module) else target
    sequence, drafter = model.start(draft.target_layer_ids), DraftSession(draft, block_size)
    device, length = draft.fc.weight.device, len(prompt_ids)
    prompt = sequence.extend(torch.tensor(prompt_ids))
    drafter.append(prompt.features)
    result = Generation([int(sample_tokens(prompt.logits[-1:].to(device), temperature, generator))])
    while len(result.tokens) < max_new_tokens and result.tokens[-1] not in end_token_ids:
        anchor = result.tokens[-1]
        proposal = drafter.propose(anchor, temperature, generator)
        verified = sequence.extend(torch.tensor([anchor, *proposal.tokens.tolist()]))
        count, following = verify_block(
            probabilities(verified.logits.to(device), temperature).unsqueeze(0),
            probabilities(proposal.logits, temperature).unsqueeze(0),
            proposal.tokens.unsqueeze(0),
            generator,
        )
        kept = int(count)
        length += 1 + kept
        sequence.truncate(length)
        drafter.append(verified.features[: 1 + kept])
        proposals = tuple(proposal.tokens.tolist())
        confidence = None if proposal.confidence is None else tuple(proposal.confidence.tolist())
        result.rounds.append(Round(anchor, proposals, kept, confidence))
        result.tokens.extend(_until_end([*proposals[:kept], int(following)], end_token_ids))
    del result.tokens[max_new_tokens:]
    return result


def _until_end(tokens: list[int], end_token_ids: Collection[int]) -> list[int]:
    """The tokens up to the first end token, which is kept."""
    for count, token in enumerate(tokens, start=1):
        if token in end_token_ids:
            return tokens[:count]
    return tokens
