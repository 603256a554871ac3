"""The DSpark paper's Appendix A against the verify planner in use, SGLang 0.5.23's.

One request, two proposals, steps a second SPS(1) = 1.0, SPS(2) = 0.5, SPS(3) = 0.45, and a first proposal that
survives with chance 0.8. Verifying 0, 1, 2 proposals is expected to yield, in tokens a second,

    theta 0 = 1 * 1.0 = 1.0,   theta 1 = (1 + 0.8) * 0.5 = 0.9,   theta 2 = (1 + 0.8 + a2) * 0.45,

where a2 = 0.8 * c2 and c2, the confidence of the second proposal, depends on which token the first one is. With c2 =
0.9 theta 2 is 1.134 and wins; with c2 = 0 it is 0.81, and verifying nothing wins. So whoever takes the best of all
three after seeing the block admits the first proposal according to what it is, and the answers are no longer the
target's: with target (0.7, 0.3) and draft (0.5, 0.5) over the tokens A and B, and A the one with the high c2, the
first token is A with chance 0.5 + 0.5 * 0.7 = 0.85. Algorithm 1 of the paper stops at theta 1 < theta 0 and verifies
nothing, whatever c2 is.

SGLang takes the best of all, as the paper's section 5.2 does in production; what keeps it lossless is that it looks
at the confidences of earlier steps only: of two steps ago, or of the last one where the relay has no ring (off CUDA).
These tests hold it to that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.speculative.dspark.dspark_schedule import ScheduleVerifyLensTopk
from sglang.srt.managers.overlap_utils import CONFIDENCE_RELAY_RING_LAG, ConfidenceRelay
from sglang.srt.speculative.dspark_components.dspark_planner import (
    DSparkScheduleConfig,
    HostConfidenceBudgetPlanner,
    compute_verify_token_budget,
)
from sglang.srt.speculative.dspark_components.dspark_sps import SpsCostTable, load_sps_table_from_path

CONFIG = DSparkScheduleConfig(gamma=2)
TARGET, DRAFT = (0.7, 0.3), (0.5, 0.5)
# The confidences of a block whose first proposal is A, and of one whose first proposal is B.
BLOCKS = ((0.8, 0.9), (0.8, 0.0))
A, B = range(2)


@pytest.fixture
def table(tmp_path: Path) -> SpsCostTable:
    """The appendix's curve, through the file that --speculative-dspark-sps-table-path names."""
    path = tmp_path / "steps.json"
    curve = {"sample_batch_tokens": [1, 2, 3], "sample_steps_per_sec": [1.0, 0.5, 0.45], "max_batch_tokens": 3}
    path.write_text(json.dumps(curve))
    return load_sps_table_from_path(str(path))


def planner_of(table: SpsCostTable, *, overlap: bool) -> HostConfidenceBudgetPlanner:
    """As DSparkVerifyPlanner makes it; with the overlap schedule the confidences arrive late by themselves."""
    pool = SimpleNamespace(req_to_token=torch.zeros(4, 1))
    lag = CONFIDENCE_RELAY_RING_LAG if overlap else 0
    runner = SimpleNamespace(req_to_token_pool=pool)
    return HostConfidenceBudgetPlanner(sps_table=table, cfg=CONFIG, model_runner=runner, relay_lag_steps=lag)


def budget_of(planner: HostConfidenceBudgetPlanner, block: Sequence[float]) -> int:
    """The budget of a step that hands the planner these confidences, of the request in pool row 1."""
    first = torch.ones(1, dtype=torch.int64)
    return planner.compute_budget(
        confidence=torch.tensor([block]), generation=first, current_generation=first, req_pool_indices_cpu=first
    )


def admitted(block: Sequence[float], budget: int) -> int:
    """How many proposals of a block are verified under a budget."""
    lengths = ScheduleVerifyLensTopk.execute(confidence=torch.tensor([block]), budget=budget, cfg=CONFIG)
    return int(lengths[0]) - 1


def retrospective(table: SpsCostTable, block: Sequence[float]) -> int:
    """How many proposals the best throughput verifies, for who looks at the very block."""
    survival = torch.tensor([block]).cumprod(1)
    return compute_verify_token_budget(history_survival_probs=survival, sps_table=table, cfg=CONFIG).budget


def early_stopping(curve: Sequence[float], block: Sequence[float]) -> int:
    """Algorithm 1 of the paper for one request."""
    best, expected, survival, kept = curve[0], 1.0, 1.0, 0
    for position, confidence in enumerate(block, start=1):
        survival *= confidence
        expected += survival
        if expected * curve[position] <= best:
            break
        best, kept = expected * curve[position], position
    return kept


def chance_of_a(verified: Sequence[int]) -> float:
    """The chance that the first token is A where a block that begins with A, or B, has so many proposals verified."""
    chance = 0.0
    for token, count in zip((A, B), verified, strict=True):
        if count == 0:  # no proposal is looked at: the target's own draw
            chance += DRAFT[token] * TARGET[A]
            continue
        kept = min(1.0, TARGET[token] / DRAFT[token])
        left = [max(p - q, 0.0) for p, q in zip(TARGET, DRAFT, strict=True)]
        refused = left[A] / sum(left)
        chance += DRAFT[token] * (kept * (token == A) + (1 - kept) * refused)
    return chance


@pytest.mark.parametrize(("block", "budget", "theta"), [(BLOCKS[A], 2, 1.134), (BLOCKS[B], 0, 1.0)])
def test_throughputs_of_the_appendix(table: SpsCostTable, block: Sequence[float], budget: int, theta: float) -> None:
    """The planner's expected tokens a second, and the best number of proposals by them."""
    survival = torch.tensor([block]).cumprod(1)
    decision = compute_verify_token_budget(history_survival_probs=survival, sps_table=table, cfg=CONFIG)
    assert decision.budget == budget
    assert decision.predicted_theta == pytest.approx(theta)


def test_looking_at_the_block_itself_would_bias_the_answers(table: SpsCostTable) -> None:
    """The appendix's counterexample: SGLang's search over the very block gives (0.85, 0.15) for a target of (0.7, 0.3).
    Without this the next test could pass for a planner that never trims anything."""
    verified = [admitted(block, retrospective(table, block)) for block in BLOCKS]
    assert verified == [2, 0]
    assert chance_of_a(verified) == pytest.approx(0.85)


def test_early_stopping_verifies_nothing_here(table: SpsCostTable) -> None:
    """Algorithm 1 sees theta 1 = 0.9 < 1.0 and stops before c2; unbiased, and slower than 1.134 in the first case."""
    verified = [early_stopping(table.sample_steps_per_sec, block) for block in BLOCKS]
    assert verified == [0, 0]
    assert chance_of_a(verified) == pytest.approx(TARGET[A])


@pytest.mark.parametrize(
    "history", list(product((A, B), repeat=3)), ids=lambda blocks: "".join("AB"[b] for b in blocks)
)
def test_the_planner_in_use_is_lossless(table: SpsCostTable, history: tuple[int, ...]) -> None:
    """Without the overlap schedule, after every history of three blocks: what the new block is does not move its
    budget, the block of two steps ago decides it, and the first token is the target's own."""
    budgets = []
    for block in BLOCKS:
        planner = planner_of(table, overlap=False)
        for token in history:
            budget_of(planner, BLOCKS[token])
        budgets.append(budget_of(planner, block))
    assert budgets == [retrospective(table, BLOCKS[history[-2]])] * 2
    verified = [admitted(block, budget) for block, budget in zip(BLOCKS, budgets, strict=True)]
    assert chance_of_a(verified) == pytest.approx(TARGET[A])


@pytest.mark.parametrize("block", BLOCKS, ids=("A", "B"))
def test_with_the_overlap_schedule_the_relay_is_the_delay(table: SpsCostTable, block: Sequence[float]) -> None:
    """The scheduler asks the relay before the step that drafts the new block; then only is the block handed in. Off
    CUDA the relay keeps one step, not two: the budget is the last block's, whatever the new one is."""
    planner, row = planner_of(table, overlap=True), torch.ones(1, dtype=torch.int64)
    relay = ConfidenceRelay(torch.device("cpu"), 4, SimpleNamespace(req_generation=torch.ones(4, dtype=torch.int64)))
    spec_info = SimpleNamespace(future_indices=row)
    batch = SimpleNamespace(spec_info=spec_info, req_pool_indices=row, req_pool_indices_cpu=row)
    assert relay.resolve(batch, stream=None, publish_ready=None) is None, "nothing to plan the first step by"
    budgets = []
    for drafted in (BLOCKS[A], BLOCKS[B], block):
        relay.scatter(row, torch.tensor([drafted]))
        resolved = relay.resolve(batch, stream=None, publish_ready=None)
        budgets.append(
            planner.compute_budget(
                confidence=resolved.confidence,
                generation=resolved.generation,
                current_generation=row,
                req_pool_indices_cpu=row,
            )
        )
    assert budgets[:2] == [2, 0]
    # What the new block is shows in the step after it only.
    assert budgets[2] == retrospective(table, block)


def test_a_new_request_is_verified_whole(table: SpsCostTable) -> None:
    """There is no history to plan by: all proposals count as sure."""
    assert budget_of(planner_of(table, overlap=False), BLOCKS[B]) == 2
