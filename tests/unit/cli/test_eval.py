"""`sglang-dspark eval`: what it writes, and what it says of a command line or a file that it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_dspark import cli
from sglang_dspark.cli.server import free_port
from sglang_dspark.demo import DemoPair, DemoSpec, build
from sglang_dspark.evaluate import calibrating
from sglang_dspark.evaluate.samples import read_shards


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> DemoPair:
    return build(tmp_path_factory.mktemp("pair"), spec=DemoSpec.text(block_size=2, sparse_init_blocks=0))


@pytest.fixture
def reference(pair: DemoPair) -> list[str]:
    return ["--target", str(pair.target), "--draft", str(pair.draft), "--raw", "--new-tokens", "12"]


@pytest.mark.parametrize("part", ["acceptance", "calibrate", "steps"])
def test_help_has_an_example(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["eval", part, "--help"])
    assert end.value.code == 0
    assert f"sglang-dspark eval {part} --" in capsys.readouterr().out


def test_acceptance_of_the_reference(reference: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the Markdown alone, and the files say the same."""
    prompts = tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "The gardener walks"}\n{"prompt": "A grey morning"}\n')
    stem = tmp_path / "results" / "v0.1"
    arguments = [*reference, f"own={prompts}", "demo-code", "--limit", "2", "--out", str(stem), "--no-picture"]
    assert cli.main(["eval", "acceptance", *arguments]) == 0
    said = capsys.readouterr()
    table = json.loads((tmp_path / "results" / "v0.1.json").read_text())
    assert said.out.strip() == (tmp_path / "results" / "v0.1.md").read_text().strip()
    assert not (tmp_path / "results" / "v0.1.png").exists()
    assert [(one["name"], one["prompts"], one["new_tokens"]) for one in table["sets"]] == [
        ("own", 2, 24),
        ("demo-code", 2, 24),
    ]
    assert table["judge"]["kind"] == "reference" and table["settings"]["chat"] is False
    assert table["run"]["versions"]["sglang-dspark"] and table["run"]["commit"]
    assert "2 of 2 prompts" in said.err


def test_calibration_of_the_reference(
    reference: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the prompts is kept out of the fit, and all rounds can be kept for another one. SGLang's fitter has tests
    of its own, and eight seconds to start."""
    seen = []
    monkeypatch.setattr(calibrating, "fit_temperatures", lambda samples: seen.append(len(samples)) or [2.0, 0.5])
    out, rounds = tmp_path / "sts.json", tmp_path / "deep" / "rounds.0.pt"
    arguments = [*reference, "demo-code", "--limit", "5", "--temperatures", str(out), "--rounds", str(rounds)]
    assert cli.main(["eval", "calibrate", *arguments]) == 0
    written = json.loads(out.read_text())
    assert written["temperatures"] == [2.0, 0.5] and written["num_samples"] == seen[0]
    text = capsys.readouterr().out
    assert (
        f"fitted on {seen[0]} rounds; everything below is of {len(read_shards(str(rounds))) - seen[0]} others" in text
    )
    assert "| 1 | 2.00 |" in text and "| 2 | 0.50 |" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acceptance", "a=b"], "say who is asked: --url or --target with --draft"),
        (["acceptance", "--url", "http://h:1", "--target", "t", "--draft", "d", "a=b"], "say who is asked"),
        (["acceptance", "--target", "t", "a=b"], "--target and --draft go together"),
        (["acceptance", "--url", "http://h:1"], "required: NAME=FILE"),
        (["acceptance", "--url", "http://h:1", "--template", "[1]", "a=b"], "asked for a JSON object"),
        (["calibrate", "--shards", "x", "a=b", "--temperatures", "f"], "prompts go with the reference"),
        (["calibrate", "--target", "t", "--draft", "d", "--temperatures", "f"], "prompts go with the reference"),
        (["calibrate", "--shards", "x"], "required: --temperatures"),
        (["steps", "--out", "f"], "required: --url"),
        ([], "required: PART"),
    ],
)
def test_command_lines_that_mean_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["eval", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a=b", "a=c"], "b, which cannot be read"),
        (["demo-code", "demo-code"], "two data sets of one name: demo-code"),
        (["demo-code", "--limit", "0"], "asked for 0 prompts"),
        (["demo-code"], "no answer"),
        (["demo-code", "--at-once", "0"], "asked for 0 prompts at once"),
    ],
)
def test_what_cannot_be_measured(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 and one message; a bad file is found before anything is asked."""
    url = f"http://127.0.0.1:{free_port()}"
    assert cli.main(["eval", "acceptance", "--url", url, *arguments]) == 1
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
