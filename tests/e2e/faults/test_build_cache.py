"""A folder for kernels that cannot be written: the next backend runs, with a warning; and what SIGTERM does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sglang_dspark.cli.server import Server
from sglang_dspark.demo import DemoPair
from tests.e2e.faults.inflight import Streams
from tests.e2e.serving import accepted_length, ask_all

pytestmark = pytest.mark.e2e

LONG = 200  # new tokens: a few seconds
GONE_SECONDS = 120.0


@pytest.fixture(scope="module")
def server(pair: DemoPair, server_of: Callable[..., Server]) -> Iterator[Server]:
    # Nobody can make a folder there, root neither. The kernels cover bf16 alone.
    with server_of(pair, "cache", dtype="bfloat16", SGLANG_DSPARK_CACHE="/proc/kernels") as server:
        yield server


def test_the_next_backend_runs_and_a_warning_says_why(server: Server, texts: list[str]) -> None:
    assert accepted_length(ask_all(server, texts[:8])) > 2, "the draft does not find its context"
    log = server.log.read_text(errors="replace")
    for op in ("context_kv", "qk_norm_rope"):
        assert f"{op}=torch" in log
        (warning,) = [line for line in log.splitlines() if f"{op} runs as torch" in line]
        assert "no folder for compiled kernels" in warning and "set SGLANG_DSPARK_CACHE" in warning


def test_sigterm_lets_running_requests_finish(server: Server, texts: list[str]) -> None:
    """What an orchestrator sends first; every answer is whole, and the exit status is 0."""
    streams = Streams(server, texts[:4], LONG)
    streams.wait_until_running()
    assert server.drain(GONE_SECONDS) == 0
    assert not any(streams.errors())
    for answer in streams.answers:
        assert answer.result()[-1]["meta_info"]["completion_tokens"] == LONG
