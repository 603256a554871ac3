"""What changes under a running server: its prefix cache is filled and emptied, and its weights are replaced.

One server with pages of 64 tokens and a small pool; what the oracle says of each draft is what must be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang_dspark.cli.server import Server, ServerFailed
from sglang_dspark.demo import DemoPair
from tests.e2e.serving import Answer, accepted_length, serve
from tests.e2e.test_lossless import counted, histogram
from tests.oracle.draft import Draft
from tests.oracle.generate import Result, speculative_greedy
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e

PAGE, POOL = 64, 2048
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def good(pair_of: Callable[..., DemoPair]) -> DemoPair:
    return pair_of(layout="released")


@pytest.fixture(scope="module")
def wrong(pair_of: Callable[..., DemoPair]) -> DemoPair:
    """The same target with a draft that proposes from another table."""
    return pair_of(layout="released", wrong_draft=True)


@pytest.fixture(scope="module")
def server(good: DemoPair, logs: Path) -> Iterator[Server]:
    flags = ("--page-size", str(PAGE), "--max-total-tokens", str(POOL))
    with serve(good, logs / "running.log", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def ids(good: DemoPair, texts: list[str]) -> list[int]:
    tokenizer = Tokenizer.from_file(str(good.target / "tokenizer.json"))
    return [i for text in texts for i in tokenizer.encode(text).ids]


@pytest.fixture(scope="module")
def prompts(ids: list[int]) -> list[list[int]]:
    """Four continuations of one prefix of five pages."""
    return [ids[: 5 * PAGE + 3] + ids[start : start + 9] for start in (400, 450, 500, 550)]


def results(pair: DemoPair, prompts: list[list[int]]) -> list[Result]:
    target = Target(pair.target)
    draft = Draft(pair.draft, target)
    return [speculative_greedy(target, draft, prompt, NEW_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def expected(good: DemoPair, prompts: list[list[int]]) -> list[Result]:
    return results(good, prompts)


def ask_one_by_one(server: Server, prompts: list[list[int]]) -> list[Answer]:
    """In turn, so that what is in the cache does not depend on timing."""
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    answers = [server.post("/generate", {"input_ids": ids, "sampling_params": sampling}) for ids in prompts]
    return [Answer(answer["output_ids"], answer["meta_info"]) for answer in answers]


def cached(answers: list[Answer]) -> list[int]:
    return [answer.meta["cached_tokens"] for answer in answers]


def test_a_prefix_evicted_and_served_again(
    server: Server, prompts: list[list[int]], ids: list[int], expected: list[Result]
) -> None:
    """Fault 18. Hit, evicted under pressure, computed anew, hit again: the same tokens and rounds each time."""
    rounds = [ask_one_by_one(server, prompts)]
    rounds.append(ask_one_by_one(server, prompts))
    others = [ids[start : start + 6 * PAGE] for start in range(600, 600 + 8 * 40, 40)]
    ask_one_by_one(server, others)
    rounds.append(ask_one_by_one(server, prompts))
    assert [cached(answers)[0] for answers in rounds] == [0, 5 * PAGE, 0], "the prefix was not cached, or not evicted"
    for answers in rounds:
        assert min(cached(answers)[1:]) == 5 * PAGE
        assert [answer.tokens for answer in answers] == [result.tokens for result in expected]
        assert [histogram(answer) for answer in answers] == [counted(each.accepted_per_round) for each in expected]


def test_new_weights_of_the_draft(
    server: Server, good: DemoPair, wrong: DemoPair, prompts: list[list[int]], expected: list[Result]
) -> None:
    """Another draft, and back: proposals are the new draft's at once, answers the target's all along.

    The bound ops, the stacked projection and the cached prefixes hold what the old weights made.
    """
    of_wrong = results(wrong, prompts)
    assert [result.tokens for result in of_wrong] == [result.tokens for result in expected]
    assert update(server, wrong.draft)["success"]
    after = ask_one_by_one(server, prompts)
    assert [answer.tokens for answer in after] == [result.tokens for result in expected]
    assert [histogram(answer) for answer in after] == [counted(each.accepted_per_round) for each in of_wrong]
    assert cached(after)[0] == 0, "the old draft's K and V of the prefix were kept"
    assert update(server, good.draft)["success"]
    back = ask_one_by_one(server, prompts)
    assert [histogram(answer) for answer in back] == [counted(each.accepted_per_round) for each in expected]
    assert accepted_length(back) > accepted_length(after) + 0.5


def test_new_weights_of_the_target(server: Server, good: DemoPair, prompts: list[list[int]], expected: list[Result]):
    """Its own again, to be able to tell: the draft is left as it is. In SGLang this ends the scheduler."""
    assert update(server, good.target)["success"]
    answers = ask_one_by_one(server, prompts)
    assert [answer.tokens for answer in answers] == [result.tokens for result in expected]
    assert [histogram(answer) for answer in answers] == [counted(each.accepted_per_round) for each in expected]


def test_weights_that_do_not_fit_change_nothing(
    server: Server, pair_of: Callable[..., DemoPair], prompts: list[list[int]], expected: list[Result], tmp_path: Path
) -> None:
    """A draft of another block size would load, and propose badly from then on."""
    for folder, words in (
        (pair_of(layout="released", block_size=4).draft, "block_size: the served draft has 7, found 4"),
        (tmp_path, "config.json"),
    ):
        with pytest.raises(ServerFailed, match=f"(?s)400.*Nothing was changed.*{words}"):
            update(server, folder)
    answers = ask_one_by_one(server, prompts)
    assert [answer.tokens for answer in answers] == [result.tokens for result in expected]
    assert [histogram(answer) for answer in answers] == [counted(each.accepted_per_round) for each in expected]


def update(server: Server, folder: Path) -> dict[str, object]:
    return server.post("/update_weights_from_disk", {"model_path": str(folder)})
