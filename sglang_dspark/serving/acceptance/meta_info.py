"""Counts by position in an answer's meta_info, made from what SGLang sends to its HTTP process anyway.

Two histograms come with every ended request: rounds by accepted proposals, and rounds by capped verify length. A round
without a cap verified a whole block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_dspark.serving.acceptance.rounds import reached

ACCEPTED, PROPOSED = "spec_accepted_by_position", "spec_proposed_by_position"


def by_position(rounds: int, accepted: Sequence[int], caps: Sequence[int], gamma: int) -> dict[str, list[int]]:
    """The two lists of a request.

    Args:
        rounds: of the request.
        accepted: entry k: rounds that accepted k proposals.
        caps: entry n: rounds whose verify length, the anchor included, was capped at n.
        gamma: proposals of a full block.
    """
    whole_blocks = rounds - sum(caps)
    # A cap of n leaves n - 1 proposals; a cap of 0 does not exist.
    proposed = reached(caps[1:], gamma)
    return {ACCEPTED: reached(accepted, gamma), PROPOSED: [count + whole_blocks for count in proposed]}


def around_calculate(
    original: Callable[..., None], manager: Any, meta_info: dict[str, Any], received: Any, index: int
) -> None:
    """SGLang's figures of a request first, then ours beside them; other algorithms share the function."""
    from sglang.srt.runtime_context import get_spec

    original(manager, meta_info, received, index)
    spec = get_spec()
    if spec.speculative_algorithm != "DSPARK" or not meta_info.get("spec_verify_ct"):
        return
    meta_info.update(
        by_position(
            meta_info["spec_verify_ct"],
            received.spec_correct_drafts_histogram[index],
            received.spec_cap_lens_histogram[index],
            spec.speculative_num_draft_tokens - 1,
        )
    )
