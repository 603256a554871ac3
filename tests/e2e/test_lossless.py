"""The served tokens are the target's own, and the served draft is the draft that the oracle runs.

Losslessness alone would hold with any draft, a broken one too; that the accepted lengths equal the oracle's is what
tells a right draft from one whose context K/V, mask or heads are wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sglang_dspark.demo import DemoPair
from tests.e2e.serving import NEW_TOKENS, Answer, accepted_length, ask_all, serve
from tests.oracle.draft import Draft
from tests.oracle.generate import Result, speculative_greedy
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Config:
    """One way to serve; together they pair every gamma, page size, verify mode, schedule, layout and head."""

    name: str
    gamma: int
    page_size: int
    overlap: bool
    verify: str = "static"
    layout: str = "automodel"
    flags: tuple[str, ...] = ()
    draft: dict[str, Any] = field(default_factory=dict)
    # A step-cost table under which compact verify leaves out doubtful tokens, so widths differ within a batch.
    trims: bool = False

    @property
    def mixed(self) -> bool:
        return "--enable-mixed-chunk" in self.flags


CONFIGS = (
    Config("gamma7", 7, 1, overlap=True),
    Config("gamma7-released", 7, 16, overlap=False, layout="released"),
    Config("gamma1", 1, 16, overlap=True, flags=("--chunked-prefill-size", "64")),
    Config("gamma2-rnn-compact", 2, 1, overlap=False, verify="compact", draft={"markov_head_type": "rnn"}),
    Config(
        "gamma4-gated-compact",
        4,
        16,
        overlap=True,
        verify="compact",
        layout="released",
        draft={"markov_head_type": "gated", "confidence_head_with_markov": False},
    ),
    Config("gamma15", 15, 1, overlap=True, flags=("--chunked-prefill-size", "64", "--enable-mixed-chunk")),
    Config("gamma15-page16", 15, 16, overlap=False, verify="compact"),
    Config("gamma7-uneven-widths", 7, 1, overlap=True, verify="compact", trims=True),
    Config("gamma4-no-confidence", 4, 1, overlap=False, draft={"enable_confidence_head": False}),
)


@pytest.fixture(scope="session")
def oracle(pair_of: Callable[..., DemoPair], texts: list[str]) -> Callable[..., list[Result]]:
    """The torch loop's answers to the first `count` texts with a variant of the draft."""
    pair = pair_of()
    target = Target(pair.target)
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))

    def results(draft_folder: Path, count: int) -> list[Result]:
        draft = Draft(draft_folder, target)
        return [speculative_greedy(target, draft, tokenizer.encode(text).ids, NEW_TOKENS) for text in texts[:count]]

    return results


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_tokens_and_acceptance(
    config: Config,
    pair_of: Callable[..., DemoPair],
    plain_answers: list[Answer],
    oracle: Callable[..., list[Result]],
    texts: list[str],
    logs: Path,
    tmp_path: Path,
) -> None:
    """Fault 18. 64 prompts, 16 at once, then again so that their prompts come out of the radix cache."""
    target = pair_of()
    drafted = pair_of(layout=config.layout, block_size=config.gamma, **config.draft)
    pair = DemoPair(target.target, drafted.draft)
    flags = ["--page-size", str(config.page_size), *config.flags]
    if not config.overlap:
        flags.append("--disable-overlap-schedule")
    if config.trims:
        table = tmp_path / "step_costs.json"
        table.write_text(json.dumps(COSTLY_VERIFY))
        flags += ["--speculative-dspark-sps-table-path", str(table)]
    environment = {"SGLANG_RAGGED_VERIFY_MODE": config.verify}
    with serve(pair, logs / f"{config.name}.log", *flags, environment=environment) as server:
        first = ask_all(server, texts)
        again = ask_all(server, texts)

    expected = [answer.tokens for answer in plain_answers]
    assert [answer.tokens for answer in first] == expected
    assert [answer.tokens for answer in again] == expected
    cached = [answer.meta["cached_tokens"] for answer in again]
    assert sum(tokens > 100 for tokens in cached) > 10, "the second round did not hit the radix cache"

    assert accepted_length(first) > (1.5 if config.gamma == 1 else 2.0)
    if config.mixed:
        return  # a decode step that shares its batch with a prefill chunk drafts nothing: rounds fall elsewhere
    count = len(texts) if config.name == "gamma7" else 12
    rounds = [result.accepted_per_round for result in oracle(drafted.draft, count)]
    expected_length = sum(map(sum, rounds)) / sum(map(len, rounds))
    if config.trims:
        assert accepted_length(first[:count]) < 0.95 * expected_length, "nothing was trimmed: the widths were even"
        return
    assert accepted_length(first[:count]) == pytest.approx(expected_length, rel=0.01)
    # Round by round, up to a proposal that is a tie in float32.
    same = sum(histogram(answer) == counted(each) for answer, each in zip(first, rounds, strict=False))
    assert same >= 0.95 * count
    # A prefix out of the cache must carry the draft's K/V too.
    assert accepted_length(again) == pytest.approx(accepted_length(first), rel=0.01)


def histogram(answer: Answer) -> list[int]:
    """How many verify steps of a request accepted 0, 1, 2, ... draft tokens, as the server reports it."""
    return answer.meta["spec_correct_drafts_histogram"]


def counted(accepted_per_round: list[int]) -> list[int]:
    """The same of the oracle, whose counts include the bonus token."""
    return [accepted_per_round.count(drafts + 1) for drafts in range(max(accepted_per_round))]


# Steps a second against tokens in the batch: every verified token costs a step as much again.
COSTLY_VERIFY = {
    "sample_batch_tokens": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "sample_steps_per_sec": [100.0, 95.0, 90.0, 80.0, 60.0, 40.0, 20.0, 10.0, 5.0],
    "max_batch_tokens": 1024,
}
