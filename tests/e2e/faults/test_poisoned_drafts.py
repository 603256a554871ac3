"""A draft may cost acceptance, never an answer; and a server whose scheduler dies or fails says so to everyone.

Two servers, the second started on the port of the first, which was killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglang_dspark.cli.server import Server, ServerFailed
from sglang_dspark.demo import DemoPair
from tests.e2e.faults.inflight import Streams, scheduler
from tests.e2e.faults.poison import FAILING_REQUEST, FAILURE, failing_plugin, overflow, permute, poisoned
from tests.e2e.serving import Answer, accepted_length, ask, ask_all

pytestmark = pytest.mark.e2e

LONG = 200  # new tokens: a few seconds
# Within so many seconds of its scheduler's end a server is gone, and its clients know.
GONE_SECONDS = 120.0


@dataclass(frozen=True)
class End:
    """How a server went: what its clients saw, and its exit status."""

    errors: list[BaseException | None]
    status: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("poisoned")


@pytest.fixture(scope="module")
def permuted(pair: DemoPair, server_of: Callable[..., Server], folder: Path) -> Iterator[Server]:
    """Its draft has layers, tokens and rows in the wrong places, every shape right."""
    with server_of(poisoned(pair, folder / "permuted", permute), "permuted") as server:
        yield server


@pytest.fixture(scope="module")
def killed(permuted: Server, texts: list[str]) -> End:
    """The end of that server: its scheduler killed with requests under way, as the kernel does when memory runs out."""
    streams = Streams(permuted, texts[:4], LONG)
    streams.wait_until_running()
    scheduler(permuted).send_signal(signal.SIGKILL)
    return End(streams.errors(), permuted.wait(GONE_SECONDS))


@pytest.fixture(scope="module")
def overflowing(
    pair: DemoPair, server_of: Callable[..., Server], folder: Path, permuted: Server, killed: End
) -> Iterator[Server]:
    """Its draft's weights are finite, so it loads, and all it computes is NaN: logits, probabilities, confidence."""
    environment = {"PYTHONPATH": str(failing_plugin(folder / "plugin")), "SGLANG_RAGGED_VERIFY_MODE": "compact"}
    broken = poisoned(pair, folder / "overflow", overflow)
    with server_of(broken, "overflow", port=permuted.port, **environment) as server:
        yield server


def test_a_permuted_draft(permuted: Server, texts: list[str], plain_answers: list[Answer]) -> None:
    found = ask_all(permuted, texts[:24])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain_answers[:24]]
    assert accepted_length(found) < 1.5, "the draft still proposes well: the permutation did nothing"


def test_a_killed_scheduler_ends_the_server(killed: End) -> None:
    """No client takes a part for the whole, and whoever started the server sees that it failed."""
    assert all(killed.errors)
    assert killed.status != 0


def test_restart_with_an_overflowing_draft(overflowing: Server, texts: list[str], plain_answers: list[Answer]) -> None:
    """On the killed server's port, at once; the greedy answers are the target's, whatever NaN the draft proposes."""
    found = ask_all(overflowing, texts[:24])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain_answers[:24]]
    assert accepted_length(found) < 1.5, "the draft still proposes well: nothing overflowed"


def test_samples_with_an_overflowing_draft(overflowing: Server, texts: list[str]) -> None:
    """Each token is one of the two that top_k leaves; NaN in the ratio of probabilities could let any other in."""
    sampling = {"temperature": 1.0, "top_k": 2}
    found = ask_all(overflowing, texts[:16], sampling_params=sampling, return_logprob=True, top_logprobs_num=2)
    drawn = second = 0
    for answer in found:
        chosen, best = answer.meta["output_token_logprobs"], answer.meta["output_top_logprobs"]
        for (_, token, _), top in zip(chosen, best, strict=True):
            ids = [each[1] for each in top]
            assert token in ids
            drawn, second = drawn + 1, second + (token == ids[1])
    assert 0 < second < drawn / 2, "the less likely token came up never, or more often than the likely one"


def test_an_exception_of_the_scheduler_is_reported(overflowing: Server, texts: list[str]) -> None:
    """Clients get an error, the log the traceback, whoever started the server an exit status that is not 0."""
    others = Streams(overflowing, texts[:3], LONG)
    others.wait_until_running()
    failing = Streams(overflowing, texts[3:4], LONG, rid=FAILING_REQUEST)
    assert all(others.errors()) and all(failing.errors())
    assert overflowing.wait(GONE_SECONDS) != 0
    log = overflowing.log.read_text(errors="replace")
    assert "Scheduler hit an exception" in log and "Traceback (most recent call last)" in log
    assert f"RuntimeError: {FAILURE}" in log
    with pytest.raises((ServerFailed, OSError)):
        ask(overflowing, texts[0])
