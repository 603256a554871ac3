"""The end of the context, on a server where everything else is odd as well.

One pair for all: its embedding is its LM head, 509 tokens are shared by two ranks (the second has rows of padding),
and a block has 31 tokens, so that the last verify windows lie far behind the context's end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang_dspark.cli.server import Server, ServerFailed
from sglang_dspark.demo import DemoPair
from tests.e2e.serving import AT_ONCE, Answer, serve
from tests.e2e.test_lossless import counted, histogram
from tests.oracle.draft import Draft
from tests.oracle.generate import speculative_greedy
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e

CONTEXT = 192
LONGEST = CONTEXT - 2  # of SGLang's requests, prompt and answer together
# The longest prompt that SGLang takes is 7 tokens short of the context.
PROMPTS = (1, 2, 60, 120, 150, 158, 159, 160, 161, 170, 178, 180, 182, 183, 184, 185)


@pytest.fixture(scope="module")
def odd_pair(pair_of: Callable[..., DemoPair]) -> DemoPair:
    return pair_of(
        layout="released",
        vocab_size=509,
        max_position_embeddings=CONTEXT,
        block_size=31,
        tie_word_embeddings=True,
        target_layer_gain=2.0,
    )


@pytest.fixture(scope="module")
def prompts(odd_pair: DemoPair, texts: list[str]) -> list[list[int]]:
    ids = [i for text in texts for i in Tokenizer.from_file(str(odd_pair.target / "tokenizer.json")).encode(text).ids]
    starts = random.Random(0)
    return [ids[(start := starts.randrange(len(ids) - CONTEXT)) : start + length] for length in PROMPTS]


@pytest.fixture(scope="module")
def answers(odd_pair: DemoPair, prompts: list[list[int]], logs: Path) -> tuple[list[Answer], list[Answer]]:
    """Without speculation on one rank, and with it on two."""
    with serve(odd_pair, logs / "context-end-plain.log", speculative=False) as server:
        plain = to_the_end(server, prompts)
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with serve(odd_pair, logs / "context-end.log", "--tp-size", "2", environment=environment) as server:
        found = to_the_end(server, prompts)
        with pytest.raises(ServerFailed, match=f"400.*{CONTEXT} tokens"):
            to_the_end(server, [[7] * CONTEXT])
    return plain, found


def test_tokens_up_to_the_last(answers: tuple[list[Answer], list[Answer]]) -> None:
    """Fault 19, and a draft that proposes a row of the vocabulary's padding."""
    plain, found = answers
    assert [length + len(answer.tokens) for length, answer in zip(PROMPTS, found, strict=True)] == [LONGEST] * len(
        found
    )
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain]
    assert len({token for answer in found for token in answer.tokens}) > 20, "the tied target says the same all along"


def test_acceptance_up_to_the_last(
    answers: tuple[list[Answer], list[Answer]], odd_pair: DemoPair, prompts: list[list[int]]
) -> None:
    """Round by round as in the oracle, whose positions know no end: of a short prompt, and of those near the end."""
    target = Target(odd_pair.target)
    draft = Draft(odd_pair.draft, target)
    for index in (2, 4, 9, 11, 13, 15):
        expected = speculative_greedy(target, draft, prompts[index], LONGEST - PROMPTS[index])
        assert histogram(answers[1][index]) == counted(expected.accepted_per_round)


def to_the_end(server: Server, prompts: Sequence[list[int]]) -> list[Answer]:
    """Each prompt answered until the context is full, AT_ONCE at a time."""

    def ask(ids: list[int]) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": CONTEXT - len(ids), "ignore_eos": True}
        answer = server.post("/generate", {"input_ids": ids, "sampling_params": sampling})
        return Answer(answer["output_ids"], answer["meta_info"])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, prompts))
