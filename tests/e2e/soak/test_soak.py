"""The real server under everything at once: it answers as without speculation, loses nothing and keeps nothing.

64 clients, prompts from one token to the end of the context, grammars, stop strings, log probabilities, streams and
samples; some clients abort, some leave, and the KV pool is so small that requests are retracted and resumed.
`DSPARK_NIGHTLY=1` adds a soak of 10,000 requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from tokenizers import Tokenizer

from sglang_dspark.demo import DemoPair, ensure, trained
from tests.e2e.features import COMPACT_JSON
from tests.e2e.serving import serve
from tests.e2e.soak.accounting import MemorySample
from tests.e2e.soak.driver import Outcome, expected_answers, soak
from tests.e2e.soak.workload import questions
from tests.reports import FIGURES

pytestmark = pytest.mark.e2e

CLIENTS = 64
SEED = 2026
CONTEXT, VOCABULARY = trained.SPEC.max_position_embeddings, trained.SPEC.vocab_size
# Admission hardly reserves room for answers, so requests must be sent back. A prompt that ends with the context takes
# most of the smaller pool; the larger one, for the long soak, keeps more of the prompts' cache.
POOLS = {300: 3072, 10_000: 5120}
PRESSED = ("--max-running-requests", "64", "--schedule-conservativeness", "0.1", "--chunked-prefill-size", "512")
ENVIRONMENT = {
    # After a retraction SGLang reserves more for answers and takes it back step by step, with its 600 so slowly that
    # hardly another would follow.
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "2",
    # It counts its slots after every step, and ends the server when one is lost or held twice.
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
# Without speculation the same answers differ by 3e-6 from run to run (log probabilities, other batches); a token whose
# lead is smaller than this is a tie that either server may break.
LEAST_LEAD = 1e-4
# Between a soak's second fifth and its last. Allocators and the cache's tree move a process by about as much, up and
# down; a request's record alone, were it kept, would be over 10 KB, so 60 MB by then.
GROWTH_BYTES = 32 * 2**20


@pytest.fixture(scope="module")
def run(logs: Path, request: pytest.FixtureRequest) -> Callable[[int, int], Outcome]:
    """A soak of so many requests over so many questions; its figures go into the run's report."""

    def run(requests: int, count: int) -> Outcome:
        pair: DemoPair = ensure()
        asked = questions(Tokenizer.from_file(str(pair.target / "tokenizer.json")), count, CONTEXT)
        plain = ("--max-total-tokens", "16384", *COMPACT_JSON)
        with serve(pair, logs / f"soak-plain-{requests}.log", *plain, speculative=False) as server:
            expected = expected_answers(server, asked)
        clear = [index for index, answer in enumerate(expected) if answer.lead > LEAST_LEAD]
        assert len(clear) > 0.95 * count
        asked, expected = [asked[index] for index in clear], [expected[index] for index in clear]
        flags = ("--enable-metrics", "--max-total-tokens", str(POOLS[requests]), *PRESSED, *COMPACT_JSON)
        with serve(pair, logs / f"soak-{requests}.log", *flags, environment=ENVIRONMENT) as server:
            found = soak(server, asked, expected, requests=requests, clients=CLIENTS, seed=SEED, vocab_size=VOCABULARY)
        request.config.stash[FIGURES][f"soak of {requests}"] = f"{len(clear)} questions, {found.describe()}"
        print(f"soak of {requests}: {len(clear)} questions, {found.describe()}")
        return found

    return run


def test_soak(run: Callable[[int, int], Outcome]) -> None:
    """Catches an answer that depends on neighbours, on an abort beside it, or on a retraction; and lost slots."""
    judge(run(300, 48), 300)


@pytest.mark.nightly
def test_soak_for_hours(run: Callable[[int, int], Outcome]) -> None:
    """The same for 10,000 requests, and memory that does not grow with them."""
    found = run(10_000, 160)
    judge(found, 10_000)
    assert_flat(found.memory, 10_000)


def judge(found: Outcome, requests: int) -> None:
    """Every request has come to the end it was meant to have, and nothing of it is left."""
    assert not found.complaints, f"{len(found.complaints)} of {requests}:\n" + "\n".join(found.complaints[:10])
    counts = found.counts
    assert counts["answered"] + counts["aborted"] + counts["disconnected"] == requests
    assert counts["answered at temperature 0"] > requests / 2
    assert counts["aborted"] > requests / 100 and counts["disconnected"] > requests / 100
    assert found.retracted > 0 and counts["answered after a retraction"] > 0, "the pool was not small enough"
    assert found.slots_after == found.slots_before == POOLS[requests]


def assert_flat(samples: list[MemorySample], requests: int) -> None:
    """No process of the server keeps anything of a request that is over."""
    early = [sample for sample in samples if 0.2 <= sample.done / requests < 0.4]
    late = [sample for sample in samples if 0.8 <= sample.done / requests]
    for name in samples[0].bytes_of:
        growth = median(each.bytes_of[name] for each in late) - median(each.bytes_of[name] for each in early)
        assert growth < GROWTH_BYTES, f"{name} has grown by {growth / 2**20:.0f} MB"
