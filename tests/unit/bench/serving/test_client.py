"""The client process and what is read from its result; SGLang's own entry is stood in for."""

from __future__ import annotations

import textwrap

import pytest

from sglang_dspark.bench.serving import client
from sglang_dspark.bench.serving.client import ClientFailed, SglangClient, figures

RESULT = {
    "completed": 8, "duration": 2.0, "request_throughput": 4.0, "output_throughput": 64.0, "total_throughput": 96.0,
    "total_input_tokens": 100, "total_output_tokens": 128, "accept_length": 3.25, "errors": [""] * 8,
    **{f"{statistic}_{what}_ms": 10.0 * number for number, statistic in enumerate(client.STATISTICS, 1)
       for what in client.LATENCIES},
}  # fmt: skip


def test_figures():
    found = figures(RESULT, 8)
    assert found["output_tokens_per_s"] == 64.0 and found["requests_per_s"] == 4.0
    assert found["ttft_mean_ms"] == 10.0 and found["tpot_p50_ms"] == 20.0 and found["e2e_p99_ms"] == 40.0
    assert found["accepted_length_tokens"] == 3.25


def test_no_accepted_length_is_no_figure():
    """The server counts in steps of its log interval: a short run, and one without speculation, have none."""
    assert "accepted_length_tokens" not in figures({**RESULT, "accept_length": None}, 8)


def test_unanswered_requests_fail_with_the_reason():
    short = {**RESULT, "completed": 7, "errors": ["", "Bad Request: too long"]}
    with pytest.raises(ClientFailed, match="asked for 8 answers, got 7; the first failure: Bad Request: too long"):
        figures(short, 8)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package `sglang.benchmark.serving` whose entry does what its arguments say."""
    package = tmp_path / "stand_in" / "sglang" / "benchmark"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "serving.py").write_text(
        textwrap.dedent("""
        import json, sys
        print("imported")
        def cli_main():
            print("typed", sys.argv)
            if "--raise" in sys.argv: raise ValueError("no such data set")
            if "--exit" in sys.argv: sys.exit(3)
            if "--silent" in sys.argv: return
            with open(sys.argv[sys.argv.index("--output-file") + 1], "a") as out:
                out.write(json.dumps({"asked": sys.argv[1]}) + "\\n")
        """)
    )
    # The CPU engine's start-up line would import the real one.
    return {"PYTHONPATH": str(tmp_path / "stand_in"), "SGLANG_USE_CPU_ENGINE": "0"}


def test_one_process_runs_them_one_after_another(tmp_path, stand_in):
    with SglangClient(tmp_path, stand_in) as started:
        assert started.run(["--first"]) == {"asked": "--first"}
        assert started.run(["--second"]) == {"asked": "--second"}
    log = (tmp_path / "client.log").read_text()
    assert log.count("imported") == 1 and "$ python -m sglang.benchmark.serving --second" in log


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--raise", "ValueError: no such data set"),
        ("--exit", "it ended with status 3"),
        ("--silent", "it wrote no result"),
    ],
)
def test_a_failing_run_is_an_error_and_not_the_end(tmp_path, stand_in, argument, message):
    with SglangClient(tmp_path, stand_in) as started:
        with pytest.raises(ClientFailed, match=message) as failure:
            started.run([argument])
        assert "client.log" in str(failure.value)
        assert started.run(["--next"]) == {"asked": "--next"}


def test_one_that_cannot_be_imported(tmp_path, stand_in):
    (tmp_path / "stand_in" / "sglang" / "benchmark" / "serving.py").write_text("import not_there_at_all")
    with SglangClient(tmp_path, stand_in) as started, pytest.raises(ClientFailed, match="not_there_at_all"):
        started.run(["--first"])


def test_the_command_is_what_one_would_type():
    assert client.command(["--tag", "a b"]) == "python -m sglang.benchmark.serving --tag 'a b'"


def test_the_names_are_those_of_the_installed_sglang():
    """Read from its source: a rename there must not become a missing figure here."""
    import sglang

    text = (__import__("pathlib").Path(sglang.__path__[0]) / "benchmark" / "serving.py").read_text()
    names = [*client.RATES, *client.COUNTS, "duration", "accept_length", "errors", "generated_texts"]
    names += [f"{statistic}_{what}_ms" for what in client.LATENCIES for statistic in client.STATISTICS]
    assert [name for name in names if f'"{name}": ' not in text] == []
