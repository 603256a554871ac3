"""The order of things: parity before speculation is timed, the load that is asked for, and what a row says of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_dspark.bench.serving import run
from sglang_dspark.bench.serving.client import ClientFailed
from sglang_dspark.bench.serving.greedy_parity import ParityFailed
from sglang_dspark.bench.serving.run import DSPARK, PLAIN, NotForced, Point, RunningServer, Setting, Subject
from sglang_dspark.bench.serving.workload import Workload

from ..test_rows import RUN
from .test_client import RESULT

WORKLOAD = Workload(("--dataset-name", "random-ids"), None, {"data": "random ids", "output_tokens": 8}, ("hello",))


class Handler(BaseHTTPRequestHandler):
    """Answers one token, and what a server says of itself."""

    def do_GET(self) -> None:
        self._answer(
            {"dtype": self.server.dtype, "tp_size": 2, "model_path": "/m/M3", "version": "0.5.23", "other": [1]}
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.log.append(f"asked {self.server.name}")
        tops = [[[-0.1, 4, None], [-0.2, 5, None]]]
        self._answer({"output_ids": [self.server.token], "meta_info": {"output_top_logprobs": tops}})

    def _answer(self, body) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments) -> None:
        pass


@contextmanager
def server(log: list[str], name: str, token: int = 4, dtype: str = "float32") -> Iterator[RunningServer]:
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.log, found.name, found.token, found.dtype = log, name, token, dtype
    threading.Thread(target=found.serve_forever, daemon=True).start()
    log.append(f"start {name}")
    try:
        yield RunningServer(f"http://127.0.0.1:{found.server_port}", f"serve {name}")
    finally:
        log.append(f"stop {name}")
        found.shutdown()
        found.server_close()


class FakeClient:
    """Answers each run with the result it was given for the server's turn."""

    def __init__(self, log: list[str], results: list[dict]) -> None:
        self.log, self.results, self.asked = log, iter(results), []

    def run(self, arguments):
        self.log.append("timed")
        self.asked.append(list(arguments))
        return next(self.results)


ONE = (Point(2, 8),)


def setting(log, subjects, results, points=ONE, **changes) -> Setting:
    facts = {
        "client": FakeClient(log, results), "subjects": subjects, "points": points, "workload": WORKLOAD,
        "preset": "M3", "run": RUN, "parity_texts": WORKLOAD.texts, "parity_tokens": 1, "tie": None,
        "say": lambda text: None,
    }  # fmt: skip
    return Setting(**{**facts, **changes})


def subject(log, name, **changes) -> Subject:
    forced = changes.pop("forced", None)
    return Subject(name, lambda: server(log, name, **changes), name != PLAIN, forced)


def result(texts, **changes):
    return {**RESULT, "generated_texts": list(texts) * 4, **changes}


def test_each_server_is_compared_then_timed_and_gone_before_the_next():
    log: list[str] = []
    asked = setting(log, [subject(log, PLAIN), subject(log, DSPARK)], [result("ab"), result("ac")])
    plain, dspark = run.measure(asked)
    assert log == [
        f"start {PLAIN}", f"asked {PLAIN}", "timed", f"stop {PLAIN}",
        f"start {DSPARK}", f"asked {DSPARK}", "timed", f"stop {DSPARK}",
    ]  # fmt: skip
    assert dspark.how["parity"] == "1 of 1 greedy answers equal" and not dspark.how["wrong_text"]
    assert dspark.how["server"] == "serve dspark" and dspark.how["server_tp_size"] == 2
    assert "server_other" not in dspark.how
    assert dspark.case == {"data": "random ids", "output_tokens": 8, "concurrency": 2, "requests": 8}
    # Half of the answers under load are those of the server without speculation.
    assert dspark.figures["equal_answers_share"] == 0.5 and "equal_answers_share" not in plain.figures
    assert dspark.measured and dspark.run == RUN and dspark.benchmark == "serving"


def test_a_server_that_answers_something_else_is_not_timed():
    log: list[str] = []
    asked = setting(log, [subject(log, PLAIN), subject(log, DSPARK, token=5)], [result("ab"), result("ab")])
    found = []
    with pytest.raises(ParityFailed):
        for row in run.measure(asked):
            found.append(row)
    assert [row.subject for row in found] == [PLAIN]
    assert log.count("timed") == 1 and log[-1] == f"stop {DSPARK}"


@pytest.mark.parametrize(
    ("dtype", "given", "passes"), [("bfloat16", None, True), ("float32", None, False), ("float32", 0.5, True)]
)
def test_a_tie_depends_on_the_number_format_unless_it_is_given(dtype, given, passes):
    """The other token is 0.1 below: a tie in a half type, never in float32."""
    log: list[str] = []
    subjects = [subject(log, PLAIN, dtype=dtype), subject(log, DSPARK, token=5, dtype=dtype)]
    asked = setting(log, subjects, [result("ab"), result("ab")], tie=given)
    if passes:
        assert [*run.measure(asked)][1].how["parity"] == "0 of 1 greedy answers equal, 1 part at a tie"
    else:
        with pytest.raises(ParityFailed):
            list(run.measure(asked))


def test_forced_acceptance_is_checked_by_its_length_and_not_by_its_text():
    log: list[str] = []
    name = run.forced_name(3.25)
    asked = setting(log, [subject(log, PLAIN), subject(log, name, token=9, forced=3.25)], [result("ab"), result("xy")])
    forced = [*run.measure(asked)][1]
    assert forced.subject == "dspark, 3.25 forced" and forced.how["wrong_text"] is True
    assert forced.how["parity"].startswith("not compared") and "equal_answers_share" not in forced.figures
    assert f"asked {name}" not in log


@pytest.mark.parametrize(
    ("found", "message"),
    [(1.4, "reports 1.40: SGLANG_SIMULATE_ACC_LEN was not honoured"), (None, "--decode-log-interval")],
)
def test_a_length_that_was_not_forced_fails(found, message):
    log: list[str] = []
    results = [result("ab"), result("ab", accept_length=found)]
    asked = setting(log, [subject(log, PLAIN), subject(log, "dspark, 3 forced", forced=3.0)], results)
    with pytest.raises(NotForced, match=message):
        list(run.measure(asked))


def test_a_failed_request_ends_the_run():
    log: list[str] = []
    with pytest.raises(ClientFailed, match="asked for 8 answers, got 5"):
        list(run.measure(setting(log, [subject(log, PLAIN)], [result("ab", completed=5)])))
    assert log[-1] == f"stop {PLAIN}"


def test_what_the_client_is_asked():
    log: list[str] = []
    asked = setting(
        log, [subject(log, PLAIN)], [result("ab"), {**result("ab"), "completed": 64}], (Point(2, 8), Point(16, 64))
    )
    list(run.measure(asked))
    first, second = (dict(zip(given[::2], given[1::2], strict=False)) for given in asked.client.asked)
    assert first["--num-prompts"] == "8" and first["--max-concurrency"] == "2" and second["--max-concurrency"] == "16"
    for given in asked.client.asked:
        # What warmed up must not be in the prefix cache, and the server's counts start over with it.
        assert "--flush-cache" in given and given[given.index("--seed") + 1] == "1"


def test_points_grow_with_the_concurrency_and_need_prompts():
    assert run.points([4, 1, 4], 2, WORKLOAD) == [Point(1, 2), Point(4, 8)]
    few = Workload((), 7, {}, ())
    with pytest.raises(ValueError, match="concurrency 4 with 2 rounds takes 8 different prompts, found 7"):
        run.points([1, 4], 2, few)


def test_no_server_there_is_said():
    with pytest.raises(RuntimeError, match="asked http://127.0.0.1:9/server_info.*is the server up"):
        run.server_info("http://127.0.0.1:9")


def test_the_forcing_variable_is_sglangs():
    """Its name, and that DSPARK's worker reads it, from the installed source."""
    from pathlib import Path

    import sglang

    worker = Path(sglang.__path__[0]) / "srt" / "speculative" / "dspark_components" / "dspark_worker_v2.py"
    assert f"envs.{run.FORCED_VARIABLE}.get()" in worker.read_text()
