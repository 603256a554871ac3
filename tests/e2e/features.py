"""Every kind of request a client sends, at temperature 0, so that a server with speculation must answer the same."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

from sglang_dspark.cli.server import Server
from tests.e2e.serving import ask

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "ripe": {"type": "boolean"}},
    "required": ["colour", "ripe"],
}
# The small model likes white space so much that it would write nothing else inside a JSON object.
COMPACT_JSON = ("--constrained-json-disable-any-whitespace",)
TEXT = "The gardener walks along the shore"


@dataclass(frozen=True)
class Features:
    """`texts` must be equal; `logprobs` are floats that batching may move in the last digits."""

    texts: dict[str, str]
    logprobs: list[tuple[float, int]]


def ask_features(server: Server) -> Features:
    texts = {
        "json_schema": _text(server, json_schema=json.dumps(SCHEMA)),
        "regex": _text(server, regex="(yes|no), (sir|madam)"),
        "stop string": _text(server, stop=["the", "is"]),
        "one token": _text(server, max_new_tokens=1),
        "two tokens": _text(server, max_new_tokens=2),
        "streaming": _stream(server),
        "completions": _completion(server),
        "chat": _chat(server),
    }
    answer = ask(server, TEXT, return_logprob=True, top_logprobs_num=2)
    logprobs = [(logprob, token) for logprob, token, _ in answer.meta["output_token_logprobs"]]
    return Features(texts, logprobs)


def _text(server: Server, **sampling: Any) -> str:
    body = {"text": TEXT, "sampling_params": {"temperature": 0, "max_new_tokens": 40, **sampling}}
    return server.post("/generate", body)["text"]


def _stream(server: Server) -> str:
    body = {"text": TEXT, "sampling_params": {"temperature": 0, "max_new_tokens": 40}, "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    assert len(events) > 1, "streaming gave one piece"
    return json.loads(events[-1])["text"]


def _completion(server: Server) -> str:
    body = {"model": "default", "prompt": TEXT, "temperature": 0, "max_tokens": 40}
    return server.post("/v1/completions", body)["choices"][0]["text"]


def _chat(server: Server) -> str:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": TEXT}],
        "temperature": 0,
        "max_tokens": 40,
    }
    return server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
