"""`sglang-dspark bench serving`: what it refuses, and which servers it would start. Real servers: tests/e2e."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from sglang_dspark import cli
from sglang_dspark.bench.serving.run import Subject
from sglang_dspark.cli import bench_serving

OWN = ["--model-path", "/models/M3", "--draft-path", "/models/draft"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "asked for no servers: give one of --model-path with --draft-path"),
        ([*OWN, "--demo"], "several kinds of servers"),
        (["--model-path", "/m"], "--model-path and --draft-path go together"),
        (["--plain-url", "http://a"], "--plain-url and --dspark-url go together"),
        (
            ["--plain-url", "http://a", "--dspark-url", "http://b", "--forced-acceptance", "3"],
            "--forced-acceptance is for servers that this command starts",
        ),
        (
            ["--plain-url", "http://a", "--dspark-url", "http://b", "--tp", "8"],
            "--tp 8 is for servers that this command",
        ),
        (
            ["--plain-url", "http://127.0.0.1:1", "--dspark-url", "http://gpu-box:2"],
            "http://gpu-box:2 is on another machine",
        ),
        (["--plain-url", "http://localhost:1", "--dspark-url", "http://[::1]:2"], "http://localhost:1"),
        ([*OWN, "--forced-acceptance", "0.5"], "--forced-acceptance 0.5: every step yields one token at least"),
        ([*OWN, "--concurrency", "0"], "--concurrency 0: give 1 or more"),
        ([*OWN, "--rounds", "0"], "--rounds 0: give 1 or more"),
        ([*OWN, "--output-tokens", "-3"], "--output-tokens -3: give 1 or more"),
        ([*OWN, "--prompts", "/not/there.jsonl"], "/not/there.jsonl"),
    ],
)
def test_what_does_not_go_together(given, message, capsys, tmp_path):
    assert cli.main(["bench", "serving", *given, "--out", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_too_few_prompts_are_said_before_a_server_is_started(tmp_path, capsys):
    prompts = tmp_path / "few.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    given = [*OWN, "--prompts", str(prompts), "--out", str(tmp_path / "out"), "--concurrency", "2"]
    assert cli.main(["bench", "serving", *given]) == 1
    assert "concurrency 2 with 4 rounds takes 8 different prompts, found 1" in capsys.readouterr().err


def parsed(monkeypatch, *given: str):
    """The command's arguments as it would run with them."""
    found = []
    monkeypatch.setattr(bench_serving, "run", lambda arguments: found.append(arguments) or 0)
    assert cli.main(["bench", "serving", *given]) == 0
    return found[0]


def subjects(monkeypatch, *given: str):
    """Each server that would be started: its name, its arguments, its variables."""
    started = []
    monkeypatch.setattr(bench_serving, "_started", lambda logs, *facts: started.append(facts))
    arguments = parsed(monkeypatch, *given)
    for subject in bench_serving._subjects(arguments, Path("/logs")):
        subject.start()
    return started


def test_both_servers_take_launch_server_s_own_arguments(monkeypatch):
    plain, dspark = subjects(monkeypatch, *OWN, "--tp", "8", "--trust-remote-code")
    shared = ["--model-path", "/models/M3", "--tp", "8", "--trust-remote-code"]
    assert plain == ("no speculation", shared, {})
    draft = ["--speculative-algorithm", "dspark", "--speculative-draft-model-path", "/models/draft"]
    assert dspark == ("dspark", [*shared, *draft], {})


def test_a_forced_length_is_one_more_server_with_sglang_s_variable(monkeypatch):
    *_, three, more = subjects(monkeypatch, *OWN, "--forced-acceptance", "3", "4.5")
    assert three[0] == "dspark, 3 forced" and three[2] == {"SGLANG_SIMULATE_ACC_LEN": "3"}
    assert more[0] == "dspark, 4.5 forced" and more[2] == {"SGLANG_SIMULATE_ACC_LEN": "4.5"}


def test_the_demo_runs_in_float32_on_the_cpu(monkeypatch):
    (_, arguments, environment), _ = subjects(monkeypatch, "--demo")
    assert environment == {"SGLANG_USE_CPU_ENGINE": "1"}
    assert arguments[arguments.index("--dtype") + 1] == "float32" and "cpu" in arguments


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (OWN, "M3"),
        ([*OWN, "--tp", "8"], "M3, TP 8"),
        ([*OWN, "--tensor-parallel-size", "4"], "M3, TP 4"),
        (["--demo"], "demo pair"),
    ],
)
def test_what_the_rows_call_the_model(monkeypatch, given, name):
    assert bench_serving._name(parsed(monkeypatch, *given)) == name


def test_a_terminated_run_takes_its_server_along(monkeypatch, tmp_path):
    stopped = []

    @contextmanager
    def start():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
            yield
        finally:
            stopped.append(True)

    subject = Subject("no speculation", start, speculative=False)
    monkeypatch.setattr(bench_serving, "_subjects", lambda arguments, logs: [subject])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main(["bench", "serving", *OWN, "--out", str(tmp_path)]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == [True]


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys):
    show = bench_serving._progress("starting")
    for seconds in (1, 19, 20, 25, 41, 1, 21):
        show(float(seconds))
    # The last wait is another one.
    assert capsys.readouterr().out.split() == ["starting,", "20", "s", "starting,", "41", "s", "starting,", "21", "s"]
