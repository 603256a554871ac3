"""What one decode step says about acceptance: a value made from SGLang's result and what the worker adds to it.

Everything read here is on the host already: SGLang copies accepted lengths and verify lengths there for its own use,
and the rest never left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# The attribute of SGLang's GenerationBatchResult that carries the worker's StepFacts to the result processor.
ATTRIBUTE = "sglang_dspark_step"


@dataclass(slots=True)
class StepFacts:
    """What the worker knows about a decode step and SGLang's result does not say.

    Attributes:
        drafted: the draft ran in this step; without it the proposals are placeholders.
        stopped: one entry a request of the batch: its proposals were left out of a compact verify. None: nobody's.
        confidence: [B, gamma], the probability of each proposal to be accepted given all before it were; only in the
            steps that are sampled for calibration. On the device first, on the host when the result is processed.
        switched: some request of the batch has a switch, and is to be told of its round.
    """

    drafted: bool = True
    stopped: Sequence[bool] | None = None
    confidence: torch.Tensor | None = None
    switched: bool = False


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one step that count, one entry each; requests that had ended before are left out.

    Attributes:
        rows: place in the batch.
        accepted: proposals accepted.
        proposed: proposals that the target verified, after any cap.
        drafted: False where drafting was stopped for the request.
        verified_tokens: tokens the target verified for them, anchors included.
    """

    rows: list[int]
    accepted: list[int]
    proposed: list[int]
    drafted: list[bool]
    verified_tokens: int


def read_step(result: Any, counted: Sequence[bool], facts: StepFacts, gamma: int, *, compact: bool) -> Rounds:
    """The rounds of a processed decode result.

    Args:
        result: SGLang's GenerationBatchResult, resolved: its counts are on the host.
        counted: whether each request of the batch was still running when the step was processed, which is what
            SGLang's own counts ask as well.
        facts: of the same step.
        gamma: proposals of a full block.
        compact: the target verifies only what is capped (SGLANG_RAGGED_VERIFY_MODE=compact); elsewhere whole blocks.
    """
    rows = [row for row, counts in enumerate(counted) if counts]
    accepted = [result.num_correct_drafts_per_req_cpu[row] for row in rows]
    if result.cap_lens is None:
        drafted = [facts.drafted] * len(rows)
        proposed = [gamma] * len(rows) if facts.drafted else accepted
        return Rounds(rows, accepted, proposed, drafted, len(rows) * (gamma + 1))
    all_caps = result.cap_lens.tolist()
    caps = [all_caps[row] for row in rows]
    drafted = [facts.drafted and not (facts.stopped is not None and facts.stopped[row]) for row in rows]
    # A placeholder that happens to be the target's own token was a proposal after all: never fewer than accepted.
    proposed = [max(cap - 1 if own else 0, right) for cap, own, right in zip(caps, drafted, accepted, strict=True)]
    return Rounds(rows, accepted, proposed, drafted, sum(caps) if compact else len(rows) * (gamma + 1))


def reached(histogram: Sequence[int], gamma: int) -> list[int]:
    """How many rounds reached each position 1..gamma, from a histogram of counts 0..gamma (shorter ones end in 0)."""
    totals, above = [0] * gamma, 0
    for count in range(min(len(histogram) - 1, gamma), 0, -1):
        above += histogram[count]
        totals[count - 1] = above
    return totals
