"""Leaves the draft out of a decode step where no request wants it, and a request's proposals out of a ragged verify.

Both are gates in front of two methods of SGLang's worker parts. The answers stay the target's own in all cases: what a
round verifies is the anchor and whatever stands behind it, and only what the target agrees with is kept. The draft's
context K/V is written after every verify, drafted or not, so a request can take drafting up again at any round.

What it saves depends on how SGLang verifies (SGLANG_RAGGED_VERIFY_MODE):
- compact: a stopped request verifies its anchor alone, and a batch in which all have stopped skips the draft's forward
  pass and the sampling of its block.
- static and cap-accept verify a block of one width, captured in graphs of that width: a stopped request still verifies
  gamma + 1 tokens. Only the draft's forward pass is saved, in steps in which every request has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.speculative.dspark_components.dspark_draft import (
    DraftBlockResult,
    DraftProposal,
    resolve_draft_params,
)
from sglang.srt.speculative.dspark_components.dspark_planner import verify_layout_grid
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, RaggedVerifyMode
from sglang.srt.utils.common import async_h2d

from sglang_dspark.serving.acceptance.drafting_policy import DraftingPolicy, request_mode
from sglang_dspark.serving.acceptance.drafting_switch import DraftingSwitch, new_switch
from sglang_dspark.serving.acceptance.rounds import StepFacts

# The attribute of SGLang's Req that holds its switch; None where the request always drafts.
SWITCH = "sglang_dspark_switch"


class DraftGate:
    """Stands in front of `DraftBlockProposer.propose` and `DSparkVerifyPlanner.schedule_layout` of one worker."""

    def __init__(self, worker: Any, policy: DraftingPolicy, confidence_every: int) -> None:
        """Take the places of both methods.

        Args:
            worker: SGLang's DSPARK worker, built.
            policy: the server's.
            confidence_every: take the confidences of every so many steps along for calibration; 0 is never.
        """
        self._policy, self._every = policy, confidence_every
        self._worker, self._proposer, self._planner = worker, worker._proposer, worker._verify_planner
        self._compact = self._planner.is_compact_mode
        self._propose: Callable[..., Any] = self._proposer.propose
        self._schedule: Callable[..., Any] = self._planner.schedule_layout
        self._proposer.propose = self.propose
        self._planner.schedule_layout = self.schedule_layout
        self._facts = StepFacts()
        self._steps = 0
        self._placeholders: torch.Tensor | None = None

    def take_facts(self) -> StepFacts:
        """The facts of the step that just ran."""
        facts, self._facts = self._facts, StepFacts()
        return facts

    def propose(self, *, batch: Any, **arguments: Any) -> Any:
        """SGLang's proposal, without those of stopped requests; placeholders where all have stopped."""
        switches = [switch_of(req, self._policy) for req in batch.reqs]
        stopped = [switch is not None and not switch.wants_draft for switch in switches]
        if stopped and all(stopped):
            self._facts = StepFacts(drafted=False, stopped=stopped, switched=True)
            return self._placeholder_proposal(**arguments)
        proposal = self._propose(batch=batch, **arguments)
        self._facts = StepFacts(switched=any(switch is not None for switch in switches))
        if self._compact and any(stopped):
            self._facts.stopped = stopped
            proposal = without_confidence(proposal, stopped)
        self._sample_confidence(proposal.confidence)
        return proposal

    def _sample_confidence(self, confidence: torch.Tensor | None) -> None:
        if not self._every or confidence is None:
            return
        self._steps += 1
        if self._steps % self._every == 0:
            # A copy: under graphs the tensor is a buffer that the next step's replay rewrites.
            self._facts.confidence = confidence.clone()

    def _placeholder_proposal(
        self,
        *,
        draft_input: Any,
        bs: int,
        sampling_info: Any,
        anchor_prepared: bool = False,
        **unused: Any,
    ) -> Any:
        """A proposal that costs nothing: mask tokens, which the target's own output hardly ever is.

        Marked as drafted greedily, so that a sampled verify takes their distribution for what it is, all on one token,
        and stays exact.
        """
        anchors = draft_input.bonus_tokens.view(-1)
        device = anchors.device
        block = self._proposer.draft_block_ids_view(bs=bs, device=device)
        if not anchor_prepared:
            block[:, 0].copy_(anchors)
        if self._placeholders is None or self._placeholders.shape[0] < bs:
            self._placeholders = torch.full(
                (bs, self._worker.gamma), self._worker._mask_token_id, dtype=torch.long, device=device
            )
        parameters = resolve_draft_params(sampling_info=sampling_info, bs=bs, device=device)
        tokens = DraftBlockResult(
            draft_tokens=self._placeholders[:bs],
            corrected_logits=None,
            greedy_mask=parameters.greedy_mask,
            temperatures=parameters.temperatures,
            greedy_draft=True,
        )
        confidence = None
        if self._planner.carries_confidence:
            confidence = torch.zeros((bs, self._worker.gamma), dtype=torch.float32, device=device)
        return DraftProposal(draft_block_ids=block, draft_block=tokens, confidence=confidence)

    def schedule_layout(self, **arguments: Any) -> Any:
        """SGLang's verify lengths, one for stopped requests.

        The planner gives none of its budget to a proposal of confidence zero, so its own lengths are right already;
        what remains are the whole blocks it takes where it has no budget to plan with. Their lengths are on the host.
        """
        layout = self._schedule(**arguments)
        stopped = self._facts.stopped
        if not self._compact or layout is None or layout.verify_lens_cpu is None or not stopped:
            return layout
        lengths = [1 if out else length for out, length in zip(stopped, layout.verify_lens_cpu, strict=True)]
        if lengths == layout.verify_lens_cpu:
            return layout
        grid = verify_layout_grid(
            verify_lens_cpu=lengths,
            ragged_verify_mode=RaggedVerifyMode.COMPACT,
            model_runner=self._worker.model_runner,
        )
        return RaggedVerifyLayout.from_verify_lens(verify_lens_cpu=lengths, device=arguments["device"], grid=grid)


def switch_of(req: Any, policy: DraftingPolicy) -> DraftingSwitch | None:
    """A request's switch, made when it is first asked for; None where the request always drafts."""
    try:
        switch: DraftingSwitch | None = getattr(req, SWITCH)
    except AttributeError:
        switch = new_switch(policy, request_mode(req.sampling_params))
        setattr(req, SWITCH, switch)
    return switch


def without_confidence(proposal: Any, stopped: Sequence[bool]) -> Any:
    """The proposal with confidence zero for stopped requests, so that the planner spends nothing on them."""
    if proposal.confidence is None:
        return proposal
    keeps = [0.0 if out else 1.0 for out in stopped]
    mask = async_h2d(keeps, dtype=proposal.confidence.dtype, device=proposal.confidence.device)
    return DraftProposal(
        draft_block_ids=proposal.draft_block_ids,
        draft_block=proposal.draft_block,
        confidence=proposal.confidence * mask[:, None],
        confidence_raw=proposal.confidence_raw,
        folded=proposal.folded,
        verify_ids=proposal.verify_ids,
    )
