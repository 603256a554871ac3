"""The gate in front of proposer and planner: what it lets through, leaves out, and puts in its place."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.speculative.dspark import dspark_accept
from sglang.srt.speculative.dspark_components.dspark_draft import DraftBlockResult, DraftProposal
from sglang.srt.speculative.dspark_components.dspark_verify import accept_draft_tokens
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

from sglang_dspark.serving.acceptance.draft_gate import SWITCH, DraftGate
from sglang_dspark.serving.acceptance.drafting_policy import DraftingPolicy
from sglang_dspark.serving.cpu.sampling import around_chain_speculative_sampling
from tests.unit.serving.acceptance.steps import Request

GAMMA, MASK = 3, 9
CONFIDENCE = torch.tensor([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]])


class Proposer:
    def __init__(self) -> None:
        self.calls = 0
        self.block = torch.full((4, GAMMA), MASK)

    def propose(self, *, batch: Any, draft_input: Any, bs: int, sampling_info: Any, **rest: Any) -> DraftProposal:
        self.calls += 1
        tokens = DraftBlockResult(
            draft_tokens=torch.ones(bs, GAMMA, dtype=torch.long),
            corrected_logits=torch.zeros(bs, GAMMA, 16),
            greedy_mask=torch.ones(bs, dtype=torch.bool),
            temperatures=torch.ones(bs),
            greedy_draft=False,
        )
        self.made = DraftProposal(
            draft_block_ids=self.draft_block_ids_view(bs=bs, device="cpu"),
            draft_block=tokens,
            confidence=CONFIDENCE[:bs],
            confidence_raw=CONFIDENCE[:bs] * 2,
            folded=True,
            verify_ids=torch.zeros(bs, GAMMA + 1),
        )
        return self.made

    def draft_block_ids_view(self, *, bs: int, device: Any) -> torch.Tensor:
        return self.block[:bs]


class Planner:
    carries_confidence = True

    def __init__(self, compact: bool, lengths: list[int] | None = None) -> None:
        self.is_compact_mode = compact
        self.lengths = lengths
        self.confidence: torch.Tensor | None = None

    def schedule_layout(self, *, confidence: Any, device: Any, **rest: Any) -> RaggedVerifyLayout | None:
        self.confidence = confidence
        if self.lengths is None:
            return None
        return RaggedVerifyLayout.from_verify_lens(
            verify_lens_cpu=self.lengths, device=device, grid=[sum(self.lengths)]
        )


class Setting:
    """A worker with two requests, the first of which never drafts."""

    def __init__(
        self, compact: bool = False, lengths: list[int] | None = None, every: int = 0, modes=("never", None)
    ) -> None:
        self.proposer, self.planner = Proposer(), Planner(compact, lengths)
        self.reqs = [Request(mode and {"dspark_drafting": mode}) for mode in modes]
        runner = SimpleNamespace(decode_cuda_graph_runner=None)
        worker = SimpleNamespace(
            _proposer=self.proposer,
            _verify_planner=self.planner,
            gamma=GAMMA,
            _mask_token_id=MASK,
            model_runner=runner,
        )
        self.gate = DraftGate(worker, DraftingPolicy(), every)

    def propose(self, **changes: Any) -> DraftProposal:
        """As the worker calls it, through the proposer's own name."""
        arguments = {
            "batch": SimpleNamespace(reqs=self.reqs),
            "draft_input": SimpleNamespace(bonus_tokens=torch.tensor([5, 6])),
            "verify_window": None,
            "bs": 2,
            "device": "cpu",
            "target_model": None,
            "sampling_info": None,
            "anchor_prepared": False,
        }
        return self.proposer.propose(**{**arguments, **changes})

    def layout(self, proposal: DraftProposal) -> RaggedVerifyLayout | None:
        return self.planner.schedule_layout(confidence=proposal.confidence, device=torch.device("cpu"))


def test_where_all_draft_the_proposal_goes_through_as_it_is() -> None:
    """The very object: nothing reads, copies or waits for what is on the device in a step that is not sampled."""
    setting = Setting(modes=(None, "always"), compact=True, every=2)
    assert setting.propose() is setting.proposer.made and setting.proposer.calls == 1
    facts = setting.gate.take_facts()
    assert facts.drafted and facts.stopped is None and facts.confidence is None
    assert not facts.switched, "no request has to be told of its round"


@pytest.mark.parametrize("compact", [False, True])
def test_where_none_drafts_the_draft_does_not_run(compact: bool) -> None:
    setting = Setting(compact=compact, modes=("never", "never"))
    proposal = setting.propose()
    assert setting.proposer.calls == 0
    facts = setting.gate.take_facts()
    assert not facts.drafted and facts.stopped == [True, True]
    block = proposal.draft_block
    assert proposal.draft_block_ids[:, 0].tolist() == [5, 6], "what is verified starts with the anchor"
    assert block.draft_tokens.tolist() == [[MASK] * GAMMA] * 2
    assert block.greedy_draft and block.corrected_logits is None, "a sampled verify must take it as one-hot"
    assert not proposal.folded and proposal.verify_ids is None
    assert proposal.confidence.tolist() == [[0.0] * GAMMA] * 2


def test_placeholders_serve_batches_of_every_size() -> None:
    setting = Setting(modes=("never", "never"))
    setting.propose()
    setting.reqs = setting.reqs[:1]
    one = setting.propose(bs=1, draft_input=SimpleNamespace(bonus_tokens=torch.tensor([7])))
    assert one.draft_block.draft_tokens.shape == (1, GAMMA) and one.draft_block_ids.tolist() == [[7, MASK, MASK]]
    setting.reqs = [Request({"dspark_drafting": "never"}) for _ in range(4)]
    four = setting.propose(bs=4, draft_input=SimpleNamespace(bonus_tokens=torch.arange(4)))
    assert four.draft_block.draft_tokens.shape == (4, GAMMA)


def test_sampled_requests_keep_their_temperatures() -> None:
    sampling = SimpleNamespace(temperatures=torch.tensor([[0.5], [1.0]]), top_ks=torch.tensor([40, 1]))
    block = Setting(modes=("never", "never")).propose(sampling_info=sampling).draft_block
    assert block.temperatures.tolist() == [0.5, 1.0] and block.greedy_mask.tolist() == [False, True]


def test_placeholders_leave_sampling_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's own acceptance of 40,000 placeholders, each of which the target says with 30%: the token behind the
    anchor is distributed as the target's. A distribution of the draft other than one-hot would shift it."""
    rows, vocabulary = 40_000, 12
    monkeypatch.setattr(
        dspark_accept, "chain_speculative_sampling_triton", partial(around_chain_speculative_sampling, None)
    )
    probabilities = torch.full((vocabulary,), 0.7 / (vocabulary - 1))
    probabilities[MASK] = 0.3
    sampling = SimpleNamespace(
        temperatures=torch.ones(rows, 1),
        top_ks=torch.full((rows,), 1 << 30),
        need_top_k_sampling=False,
        need_top_p_sampling=False,
        is_all_greedy=False,
        is_any_greedy=False,
    )
    setting = Setting(modes=("never",) * rows)
    setting.proposer.block = torch.full((rows, GAMMA), MASK)
    anchors = SimpleNamespace(bonus_tokens=torch.zeros(rows, dtype=torch.long))
    proposal = setting.propose(bs=rows, sampling_info=sampling, draft_input=anchors)
    candidates = torch.cat([proposal.draft_block_ids[:, :1], proposal.draft_block.draft_tokens], dim=1)
    torch.manual_seed(0)
    accepted, bonus, _ = accept_draft_tokens(
        candidates=candidates,
        target_logits=probabilities.log().expand(rows * (GAMMA + 1), vocabulary),
        draft_block=proposal.draft_block,
        sampling_info=sampling,
        draft_input=anchors,
        gamma=GAMMA,
        verify_num_draft_tokens=GAMMA + 1,
    )
    first = torch.where(accepted > 0, MASK, bonus)
    found = torch.bincount(first, minlength=vocabulary) / rows
    assert float((found - probabilities).abs().max()) < 0.01


def test_static_verify_drafts_for_all_where_one_wants_it() -> None:
    """Its width is fixed: leaving one request out would save nothing and lose its free tokens."""
    setting = Setting(compact=False)
    assert torch.equal(setting.propose().confidence, CONFIDENCE)
    facts = setting.gate.take_facts()
    assert facts.stopped is None and facts.switched


def test_compact_verify_gives_a_stopped_request_no_budget() -> None:
    setting = Setting(compact=True)
    proposal = setting.propose()
    assert torch.equal(proposal.confidence, CONFIDENCE * torch.tensor([[0.0], [1.0]]))
    assert proposal.folded and proposal.verify_ids is not None and torch.equal(proposal.confidence_raw, CONFIDENCE * 2)
    facts = setting.gate.take_facts()
    assert facts.drafted and facts.switched and facts.stopped == [True, False]


def test_whole_blocks_are_cut_to_the_anchor_for_a_stopped_request() -> None:
    """Without a step-cost table, or before confidences have come, the planner takes whole blocks for all."""
    setting = Setting(compact=True, lengths=[4, 4])
    layout = setting.layout(setting.propose())
    assert layout.verify_lens_cpu == [1, 4] and layout.verify_lens.tolist() == [1, 4]
    assert layout.total_verify_tokens == 5 and layout.qo_indptr_device.tolist() == [0, 1, 5]


def test_planned_lengths_stay_as_they_are() -> None:
    setting = Setting(compact=True, lengths=[1, 3])
    assert setting.layout(setting.propose()).verify_lens_cpu == [1, 3]
    drafting = Setting(compact=True, lengths=[4, 2], modes=(None, None))
    assert drafting.layout(drafting.propose()).verify_lens_cpu == [4, 2]


def test_no_layout_stays_none() -> None:
    """Past the captured graphs SGLang verifies whole blocks."""
    setting = Setting(compact=True, lengths=None)
    assert setting.layout(setting.propose()) is None


def test_confidences_are_sampled_every_so_many_steps_and_copied() -> None:
    """Under graphs the tensor is a buffer that the next replay rewrites."""
    setting = Setting(every=3, modes=(None, None))
    sampled = []
    for _ in range(6):
        proposal = setting.propose()
        facts = setting.gate.take_facts()
        sampled.append(facts.confidence is not None)
        if facts.confidence is not None:
            assert torch.equal(facts.confidence, CONFIDENCE)
            assert facts.confidence.data_ptr() != proposal.confidence.data_ptr()
    assert sampled == [False, False, True, False, False, True]


def test_facts_are_taken_once() -> None:
    setting = Setting(modes=("never", "never"))
    setting.propose()
    setting.gate.take_facts()
    assert setting.gate.take_facts().drafted


def test_a_request_is_asked_for_its_wish_once() -> None:
    """A request that always drafts keeps None, so that later rounds cost a look-up."""
    setting = Setting()
    setting.propose()
    assert getattr(setting.reqs[1], SWITCH) is None
    switch = getattr(setting.reqs[0], SWITCH)
    setting.propose()
    assert getattr(setting.reqs[0], SWITCH) is switch
