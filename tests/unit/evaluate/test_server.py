"""What a server that cannot be asked is told as, and how one that can is counted; stand-ins speak HTTP on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sglang_dspark.cli.server import free_port
from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.server import ServerJudge
from sglang_dspark.server_http import ServerError

INFO = {
    "version": "0.5.23",
    "speculative_algorithm": "DSPARK",
    "speculative_num_draft_tokens": 4,
    "model_path": "Qwen/Qwen3-4B",
    "internal_states": [{}],
}
META = {"prompt_tokens": 5, "completion_tokens": 6, "spec_correct_drafts_histogram": [1, 0, 1]}
Reply = Callable[[str, Any], tuple[int, Any]]


class Site:
    """An HTTP server that answers with `reply(path, body)` and remembers what it was asked."""

    def __init__(self, reply: Reply) -> None:
        self.asked: list[tuple[str, Any]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                site.asked.append((self.path, body))
                status, answer = reply(self.path, body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()


@pytest.fixture
def site() -> Iterator[Callable[[Reply], Site]]:
    sites: list[Site] = []

    def start(reply: Reply) -> Site:
        sites.append(Site(reply))
        return sites[-1]

    yield start
    for one in sites:
        one.server.shutdown()
        one.server.server_close()


def sglang(**changes: Any) -> Reply:
    """An SGLang server with these changes of its settings, whose answers carry META."""

    def reply(path: str, body: Any) -> tuple[int, Any]:
        if path == "/server_info":
            return 200, {**INFO, **changes}
        if path == "/generate":
            return 200, {"text": "t", "meta_info": META}
        return 200, {"choices": [{"message": {"content": "t"}, "meta_info": META}]}

    return reply


def test_counts_come_from_the_answers_meta_info(site: Callable[[Reply], Site]) -> None:
    """Two rounds that kept 0 and 2 of 3 proposals."""
    answer = ServerJudge(site(sglang()).url, Settings()).ask("hello")
    assert answer.counts.kept == (1, 0, 1, 0)
    assert (answer.prompt_tokens, answer.new_tokens) == (5, 6)


def test_chat_prompts_go_through_the_servers_template(site: Callable[[Reply], Site]) -> None:
    """A raw prompt to a chat model measures text that nobody would send."""
    settings = Settings(max_new_tokens=9, temperature=0.5, template={"enable_thinking": False})
    served = site(sglang())
    ServerJudge(served.url, settings).ask("hello")
    path, body = served.asked[-1]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["max_tokens"], body["temperature"], body["return_meta_info"]) == (9, 0.5, True)


def test_raw_prompts_go_as_they_are(site: Callable[[Reply], Site]) -> None:
    served = site(sglang())
    ServerJudge(served.url, Settings(chat=False, ignore_end=True)).ask("hello")
    path, body = served.asked[-1]
    assert path == "/generate"
    assert body["text"] == "hello" and body["sampling_params"]["ignore_eos"] is True


def test_nothing_listens_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError, match=f"asked {url}.*no answer.*refused.*is the server up"):
        ServerJudge(url, Settings())


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "localhost", "ftp://host"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ServerError, match="asked for a server's address"):
        ServerJudge(url, Settings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_algorithm": None}, "found no speculation; start it with --speculative-algorithm dspark"),
        ({"speculative_algorithm": "EAGLE3"}, "found speculation by EAGLE3"),
        (
            {"internal_states": [{"dspark_info_record": {"simulate_acc_len": 1.0}}]},
            "simulates an accepted length of 1.0",
        ),
    ],
)
def test_a_server_that_has_nothing_to_count(
    changes: dict[str, Any], message: str, site: Callable[[Reply], Site]
) -> None:
    """Each would give figures, of an accepted length that no draft reached."""
    with pytest.raises(ServerError, match=message):
        ServerJudge(site(sglang(**changes)).url, Settings())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, b"<html>"), "asked .* for JSON, found something else"),
        ((200, {"hello": 1}), "found something else there"),
        ((200, [1]), "found something else there"),
        ((404, {"detail": "Not Found"}), "answered HTTP 404: .*Not Found"),
        ((503, b"warming up"), "answered HTTP 503: warming up"),
    ],
)
def test_another_kind_of_server(reply: tuple[int, Any], message: str, site: Callable[[Reply], Site]) -> None:
    with pytest.raises(ServerError, match=message):
        ServerJudge(site(lambda path, body: reply).url, Settings())


def test_a_refused_request_says_what_the_server_said(site: Callable[[Reply], Site]) -> None:
    served = site(lambda path, body: (200, INFO) if path == "/server_info" else (400, {"message": "prompt too long"}))
    with pytest.raises(ServerError, match="HTTP 400: .*prompt too long"):
        ServerJudge(served.url, Settings()).ask("hello")


def test_answers_without_counts_are_refused(site: Callable[[Reply], Site]) -> None:
    """Counted as no rounds they would vanish from the mean."""
    meta = {"prompt_tokens": 5, "completion_tokens": 6}
    served = site(lambda path, body: (200, INFO if path == "/server_info" else {"meta_info": meta}))
    with pytest.raises(ServerError, match="asked .* for spec_correct_drafts_histogram"):
        ServerJudge(served.url, Settings(chat=False)).ask("hello")


def test_an_answer_of_one_token_has_no_round(site: Callable[[Reply], Site]) -> None:
    meta = {"prompt_tokens": 5, "completion_tokens": 1}
    served = site(lambda path, body: (200, INFO if path == "/server_info" else {"meta_info": meta}))
    assert ServerJudge(served.url, Settings(chat=False)).ask("hello").counts.rounds == 0


def test_a_proxy_does_not_see_loopback(site: Callable[[Reply], Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often have one set, and it cannot reach this machine's loopback."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ServerJudge(site(sglang()).url, Settings()).gamma == 3
