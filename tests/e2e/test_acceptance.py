"""Acceptance as a running server reports it: equal to the oracle's to the last count; warnings; and stopped drafting.

The oracle is a loop of its own over its own models, one request at a time, so its rounds know nothing of batches,
overlap scheduling, radix caches or warm-up requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang_dspark.cli.server import Server, ServerFailed
from sglang_dspark.demo import DemoPair
from sglang_dspark.serving.acceptance.alarms import WINDOW_ROUNDS
from tests.e2e.metrics import Scrape
from tests.e2e.serving import NEW_TOKENS, Answer, ask, ask_all, serve
from tests.oracle.draft import Draft
from tests.oracle.generate import Result, speculative_greedy
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e

GAMMA = 7
TEXTS = 12
NEVER = {"custom_params": {"dspark_drafting": "never"}}
AUTO = {"custom_params": {"dspark_drafting": "auto"}}


@pytest.fixture(scope="module")
def oracle(pair: DemoPair, texts: list[str]) -> list[Result]:
    target = Target(pair.target)
    draft = Draft(pair.draft, target)
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    return [speculative_greedy(target, draft, tokenizer.encode(text).ids, NEW_TOKENS) for text in texts[:TEXTS]]


def accepted_by_position(rounds: list[int]) -> list[int]:
    """Of rounds as the oracle counts them, the bonus token included."""
    return [sum(tokens - 1 >= place for tokens in rounds) for place in range(1, GAMMA + 1)]


def all_rounds(results: list[Result]) -> list[int]:
    return [tokens for result in results for tokens in result.accepted_per_round]


def check_answer(answer: Answer, result: Result) -> None:
    """One request's meta_info."""
    rounds = result.accepted_per_round
    assert answer.tokens == result.tokens
    assert answer.verify_steps == len(rounds)
    assert answer.meta["spec_accepted_by_position"] == accepted_by_position(rounds)
    assert answer.meta["spec_proposed_by_position"] == [len(rounds)] * GAMMA


def check_counts(counted: Scrape, rounds: list[int]) -> None:
    """All requests together, at /metrics."""
    assert counted.value("rounds", drafted="yes") == len(rounds)
    assert counted.by_position("proposed_tokens", GAMMA) == [len(rounds)] * GAMMA
    assert counted.by_position("accepted_tokens", GAMMA) == accepted_by_position(rounds)


def alarms(server: Server) -> list[str]:
    lines = server.log.read_text(errors="replace").splitlines()
    return [line for line in lines if "sglang-dspark: the mean accepted length" in line or "no proposal was" in line]


def scraped(server: Server, texts: list[str], **sampling: object) -> tuple[list[Answer], Scrape]:
    before = Scrape.of(server)
    answers = ask_all(server, texts, sampling_params=sampling)
    return answers, Scrape.of(server) - before


def test_static_verify(pair: DemoPair, texts: list[str], oracle: list[Result], logs: Path) -> None:
    """Counts with overlap scheduling, 12 at once; the same requests without drafts; a mistyped wish."""
    with serve(pair, logs / "acceptance-static.log", "--enable-metrics") as server:
        answers, counted = scraped(server, texts[:TEXTS])
        rounds = all_rounds(oracle)
        for answer, result in zip(answers, oracle, strict=True):
            check_answer(answer, result)
        check_counts(counted, rounds)
        assert counted.value("rounds", drafted="no") == counted.value("draft_steps", ran="no") == 0
        assert counted.value("verified_tokens") == len(rounds) * (GAMMA + 1)

        answers, counted = scraped(server, texts[:TEXTS], **NEVER)
        check_without_drafts(answers, counted, oracle)
        assert counted.value("verified_tokens") == counted.value("rounds") * (GAMMA + 1), "static width is one width"
        assert counted.value("draft_steps", ran="no") >= NEW_TOKENS - 1
        with pytest.raises(ServerFailed, match="dspark_drafting='nver': use one of always, auto, never"):
            ask(server, texts[0], sampling_params={"custom_params": {"dspark_drafting": "nver"}})
        assert alarms(server) == []


def check_without_drafts(answers: list[Answer], counted: Scrape, oracle: list[Result]) -> None:
    assert [answer.tokens for answer in answers] == [result.tokens for result in oracle]
    # The first token comes with the prompt, every other from a round of its own.
    assert counted.value("rounds", drafted="no") == len(answers) * (NEW_TOKENS - 1)
    assert counted.by_position("proposed_tokens", GAMMA) == counted.by_position("accepted_tokens", GAMMA) == [0] * GAMMA
    for answer in answers:
        assert answer.verify_steps == NEW_TOKENS - 1
        assert answer.meta["spec_proposed_by_position"] == answer.meta["spec_accepted_by_position"] == [0] * GAMMA


def test_compact_verify(
    pair: DemoPair, texts: list[str], oracle: list[Result], plain_answers: list[Answer], logs: Path
) -> None:
    """Counts where widths are ragged: half of the requests never draft and verify one token a round beside whole
    blocks. Calibration, which needs a mode in which SGLang loads the confidence head. A good draft raises no alarm over
    more than a window of rounds."""
    environment = {"SGLANG_RAGGED_VERIFY_MODE": "compact", "SGLANG_DSPARK_CONFIDENCE_EVERY": "1"}
    with serve(pair, logs / "acceptance-compact.log", "--enable-metrics", environment=environment) as server:
        before = Scrape.of(server)
        bodies = [(text, {} if number % 2 else NEVER) for number, text in enumerate(texts[:TEXTS])]
        answers = ask_mixed(server, bodies)
        counted = Scrape.of(server) - before
        drafting = oracle[1::2]
        rounds = all_rounds(drafting)
        for answer, result in zip(answers[1::2], drafting, strict=True):
            check_answer(answer, result)
        check_counts(counted, rounds)
        assert [answer.tokens for answer in answers[::2]] == [result.tokens for result in oracle[::2]]
        undrafted = counted.value("rounds", drafted="no")
        assert undrafted == len(answers[::2]) * (NEW_TOKENS - 1)
        assert counted.value("verified_tokens") == len(rounds) * (GAMMA + 1) + undrafted
        # Every step was sampled, so the calibration's cells hold every proposal.
        assert counted.by_position("survival", GAMMA) == counted.by_position("proposed_tokens", GAMMA)
        assert counted.by_position("survival_accepted", GAMMA) == counted.by_position("accepted_tokens", GAMMA)
        predicted = counted.by_position("survival_predicted", GAMMA)
        assert predicted == sorted(predicted, reverse=True) and 0 < predicted[-1] < predicted[0] < len(rounds)

        answers, counted = scraped(server, texts)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain_answers]
        assert counted.value("rounds", drafted="yes") > WINDOW_ROUNDS
        assert alarms(server) == []


def ask_mixed(server: Server, bodies: list[tuple[str, dict]]) -> list[Answer]:
    """One HTTP request for all, so that they share their batches."""
    sampling = [{"temperature": 0, "max_new_tokens": NEW_TOKENS, **extra} for _, extra in bodies]
    answers = server.post("/generate", {"text": [text for text, _ in bodies], "sampling_params": sampling})
    return [Answer(answer["output_ids"], answer["meta_info"]) for answer in answers]


def test_a_losing_draft(
    pair_of: Callable[..., DemoPair], texts: list[str], plain_answers: list[Answer], logs: Path
) -> None:
    """Faults 2 and 21. It is warned of, once; stopping it on the requests that lose saves most of what it costs; no
    token changes."""
    losing = DemoPair(pair_of().target, pair_of(wrong_draft=True).draft)
    environment = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    expected = [answer.tokens for answer in plain_answers[:16]]
    with serve(losing, logs / "acceptance-losing.log", "--enable-metrics", environment=environment) as server:
        always, spent = scraped(server, texts[:16])
        (warning,) = alarms(server)
        assert re.search(r"mean accepted length was 1\.0\d", warning) and "target_layer_ids" in warning
        auto, saved = scraped(server, texts[:16], **AUTO)

    assert [answer.tokens for answer in always] == [answer.tokens for answer in auto] == expected
    assert spent.value("alarms", alarm="low_acceptance") == 1
    assert saved.value("drafting_changes", to="stopped") == 16
    # 16 rounds are judged, one more was under way; then the anchors alone are verified.
    for answer in auto:
        assert 16 <= answer.meta["spec_proposed_by_position"][0] <= 18
    assert saved.value("verified_tokens") < 0.5 * spent.value("verified_tokens")
    # How many steps depends on how far apart the requests came in.
    assert saved.value("draft_steps", ran="no") > 0
