"""Requests of every kind get the target's own answer, or are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_dspark.cli.server import Server, ServerFailed
from sglang_dspark.demo import DemoPair
from tests.e2e.features import COMPACT_JSON, TEXT, Features, ask_features
from tests.e2e.serving import ask, serve

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(pair: DemoPair, logs: Path) -> Iterator[Server]:
    with serve(pair, logs / "features.log", *COMPACT_JSON) as server:
        yield server


def test_every_kind_of_request(server: Server, plain_features: Features) -> None:
    """Grammar, stop strings, streaming, logprobs and the OpenAI routes, against the server without speculation."""
    found = ask_features(server)
    assert found.texts == plain_features.texts
    assert json.loads(found.texts["json_schema"])["colour"] in ("red", "green", "blue")
    assert found.texts["regex"] in ("yes, sir", "yes, madam", "no, sir", "no, madam")
    assert [token for _, token in found.logprobs] == [token for _, token in plain_features.logprobs]
    expected = [logprob for logprob, _ in plain_features.logprobs]
    assert [logprob for logprob, _ in found.logprobs] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"min_new_tokens": 5},
        {"temperature": 1.0, "min_p": 0.2},
    ],
    ids=lambda sampling: next(reversed(sampling)),
)
def test_what_would_not_be_lossless_is_refused(server: Server, sampling: dict[str, float]) -> None:
    """SGLang applies these wrongly inside a verify window and says nothing."""
    name = next(reversed(sampling))
    with pytest.raises(ServerFailed, match=f"(?s)400.*{name}.*without speculation"):
        ask(server, TEXT, sampling_params=sampling)


def test_neutral_values_and_min_p_at_temperature_zero_pass(server: Server) -> None:
    """Clients send the neutral values with every request."""
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
    assert ask(server, TEXT, sampling_params={**neutral, "min_p": 0.2}).tokens == ask(server, TEXT).tokens


def test_the_server_reports_its_acceptance(server: Server) -> None:
    """A request's meta_info carries what a client needs to see that drafting works."""
    meta = ask(server, TEXT).meta
    assert meta["spec_verify_ct"] > 0
    assert meta["spec_accept_length"] == pytest.approx(
        1 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"], rel=0.1
    )
