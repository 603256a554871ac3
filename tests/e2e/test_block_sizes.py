"""Every block size on every page size, on a server of its own each. CI runs some of them in other tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang_dspark.demo import DemoPair
from tests.e2e.serving import NEW_TOKENS, Answer, accepted_length, ask_all, serve
from tests.e2e.test_lossless import counted, histogram
from tests.oracle.draft import Draft
from tests.oracle.generate import speculative_greedy
from tests.oracle.target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

COUNT = 8


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("block_size", range(1, 32))
def test_tokens_and_acceptance(
    block_size: int,
    page_size: int,
    pair_of: Callable[..., DemoPair],
    plain_answers: list[Answer],
    texts: list[str],
    logs: Path,
) -> None:
    """Tokens as without speculation, and rounds as in the oracle."""
    target = pair_of()
    pair = DemoPair(target.target, pair_of(block_size=block_size).draft)
    flags = ("--page-size", str(page_size), "--max-running-requests", "16")
    with serve(pair, logs / f"block{block_size}-page{page_size}.log", *flags) as server:
        found = ask_all(server, texts[:COUNT])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain_answers[:COUNT]]
    rounds = _rounds(pair, texts)
    same = sum(histogram(answer) == counted(each) for answer, each in zip(found, rounds, strict=True))
    print(f"block {block_size} page {page_size}: accepted length {accepted_length(found):.3f}, {same} of {COUNT} alike")
    assert same >= COUNT - 1  # one tie in float32


def _rounds(pair: DemoPair, texts: list[str]) -> list[list[int]]:
    target = Target(pair.target)
    draft = Draft(pair.draft, target)
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for text in texts[:COUNT]]
    return [speculative_greedy(target, draft, each, NEW_TOKENS).accepted_per_round for each in ids]
