"""The reference as the judge keeps what the tests' own oracle keeps, and hands out the confidences with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from sglang_dspark.checkpoints import CheckpointError
from sglang_dspark.demo import DemoPair, DemoSpec, build, prompts
from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.calibration import survival
from sglang_dspark.evaluate.oracle import OracleJudge, end_tokens, samples_of
from sglang_dspark.reference import Round
from tests.oracle.draft import Draft
from tests.oracle.generate import speculative_greedy
from tests.oracle.target import Target

GAMMA = 3
RAW = Settings(max_new_tokens=20, chat=False, ignore_end=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> DemoPair:
    # transformers' MiniMax-M3 knows no initial sparse blocks.
    spec = DemoSpec.text(block_size=GAMMA, sparse_init_blocks=0)
    return build(tmp_path_factory.mktemp("pair"), layout="released", spec=spec)


def judge_of(pair: DemoPair, settings: Settings = RAW) -> OracleJudge:
    return OracleJudge(pair.target, pair.draft, settings)


def test_the_same_rounds_as_the_oracle(pair: DemoPair) -> None:
    """Two implementations that share no code; a draft of the released layout, whose tables are the target's."""
    judge, target = judge_of(pair), Target(pair.target)
    draft = Draft(pair.draft, target)
    for text in prompts(3):
        ids = judge.tokenizer(text)["input_ids"]
        expected = speculative_greedy(target, draft, ids, RAW.max_new_tokens)
        answer = judge.ask(text)
        kept = [accepted - 1 for accepted in expected.accepted_per_round]
        assert answer.counts.kept == tuple(kept.count(k) for k in range(GAMMA + 1))
        assert (answer.prompt_tokens, answer.new_tokens) == (len(ids), RAW.max_new_tokens)
        samples = judge.samples(text)
        assert samples.kept.tolist() == kept
        assert samples.logits.shape == (len(kept), GAMMA)


def test_chat_prompts_end_where_the_answer_begins(pair: DemoPair) -> None:
    """The template's own marks, once: a tokenizer that adds special tokens of its own would double the first."""
    judge = judge_of(pair, Settings(max_new_tokens=1))
    ids, _ = judge.generate("hello")
    text = judge.tokenizer.decode(ids)
    assert text.startswith("<|begin|><|user|>hello<|end|>") and text.endswith("<|assistant|>")
    assert text.count("<|begin|>") == 1


def test_a_model_without_a_chat_template(pair: DemoPair) -> None:
    judge = judge_of(pair, Settings())
    judge.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template.*--raw"):
        judge.ask("hello")


def test_end_tokens(pair: DemoPair, tmp_path: Path) -> None:
    """A server stops at each of them, so the reference must, or its last rounds differ."""
    assert end_tokens(pair.target) == {2}
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": None}))
    assert end_tokens(tmp_path) == frozenset()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert end_tokens(tmp_path) == {5, 6}


def test_folders_that_hold_no_pair(pair: DemoPair, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="(?s)The target .*nowhere.*no such folder"):
        OracleJudge(tmp_path / "nowhere", pair.draft, RAW)
    with pytest.raises(CheckpointError, match="The DSpark draft .*nowhere"):
        OracleJudge(pair.target, tmp_path / "nowhere", RAW)


def test_a_draft_without_a_confidence_head(tmp_path: Path) -> None:
    spec = DemoSpec.text(enable_confidence_head=False, sparse_init_blocks=0)
    bare = build(tmp_path, spec=spec)
    with pytest.raises(ValueError, match="without a confidence head: there is nothing to calibrate"):
        judge_of(bare).samples("hello")


@pytest.mark.parametrize("chances", [(0.25, 0.9), (0.0, 1.0)])
def test_confidences_become_logits_and_back(chances: Sequence[float]) -> None:
    """Chances that rounding brought to 0 and 1 stay finite."""
    samples = samples_of([Round(anchor=1, proposals=(2, 3), kept=1, confidence=tuple(chances))], gamma=2)
    assert torch.isfinite(samples.logits).all()
    expected = [chances[0], chances[0] * chances[1]]
    assert survival(samples.logits)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert len(samples_of([], gamma=2)) == 0
