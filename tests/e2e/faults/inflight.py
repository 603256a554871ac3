"""Requests that are under way when something happens to their server."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil

from sglang_dspark.cli.server import Server

# A client that hears nothing for so long hangs.
TIMEOUT_SECONDS = 120.0


class Streams:
    """Streaming requests; each future holds the events it got, or the error that its client saw."""

    def __init__(self, server: Server, texts: list[str], new_tokens: int, **body: Any) -> None:
        """Start one a text."""
        self._pool = ThreadPoolExecutor(len(texts))
        self._first = [threading.Event() for _ in texts]
        self.answers: list[Future[list[dict[str, Any]]]] = [
            self._pool.submit(_stream, server, text, new_tokens, first, body)
            for text, first in zip(texts, self._first, strict=True)
        ]

    def wait_until_running(self) -> None:
        """Until every request has had its first event."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for first in self._first:
            if not first.wait(deadline - time.monotonic()):
                raise TimeoutError("a request had no event")

    def errors(self) -> list[BaseException | None]:
        """What each client saw; None for an answer. Raises when one hears nothing."""
        found = [answer.exception(TIMEOUT_SECONDS) for answer in self.answers]
        self._pool.shutdown()
        return found


def _stream(
    server: Server, text: str, new_tokens: int, first: threading.Event, body: dict[str, Any]
) -> list[dict[str, Any]]:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    asked = {"text": text, "sampling_params": sampling, "stream": True, **body}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/generate", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    events, ended = [], False
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        for line in answer:
            ended = ended or line.startswith(b"data: [DONE]")
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
                first.set()
                if "error" in events[-1]:
                    raise ConnectionError(str(events[-1]["error"]))
    if not ended:
        raise ConnectionError("the stream broke off")
    return events


def scheduler(server: Server) -> psutil.Process:
    """The process that runs the model."""
    for child in psutil.Process(server.pid).children(recursive=True):
        if any(word.startswith("sglang::scheduler") for word in child.cmdline()):
            return child
    raise LookupError("the server has no scheduler process")
