"""`sglang-dspark serve` as a shell runs it: the command on standard output, the reasons on standard error."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark import cli
from sglang_dspark.cli import serve
from tests.unit.checkpoints.drafts import released
from tests.unit.checkpoints.folders import save_draft, save_target

SCRIPT = Path(sys.executable).with_name("sglang-dspark")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A pair that fits, as arguments."""
    target, draft = save_target(tmp_path / "a target"), save_draft(tmp_path / "draft", released())
    return ["--model-path", str(target), "--speculative-draft-model-path", str(draft)]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", **variables}
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, env=environment, timeout=120)


def test_a_dry_run_prints_a_command_that_can_be_run(words: list[str]) -> None:
    """Standard output is a script: one line, the user's words untouched, what was added behind them."""
    own = [*words, "--json-model-override-args", '{"x": "it\'s"}', "--log-level", "info"]
    done = run("serve", "--dry-run", *own)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    typed = shlex.split(line)
    assert "SGLANG_USE_CPU_ENGINE=1" in typed and typed[typed.index("-m") + 1] == "sglang.launch_server"
    assert typed[typed.index("-m") + 2 :] == [
        *own, "--speculative-algorithm", "dspark", "--device", "cpu", "--max-total-tokens", "32768",
    ]  # fmt: skip
    assert "added:" in done.stderr and "behind SGLang's algorithm of that name" in done.stderr
    assert "looking at this machine" in done.stderr, "seconds without a word"


def test_sglang_is_not_imported_for_advice(words: list[str]) -> None:
    """It takes ten seconds, and may be what is broken."""
    call = f"main({['serve', '--dry-run', *words]!r})"
    code = f"import sys; from sglang_dspark.cli import main; print({call}, 'sglang' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_a_refusal_says_what_to_do_and_starts_nothing(words: list[str], tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", num_hidden_layers=4)
    done = run("serve", *words[2:], "--model-path", str(other))
    assert done.returncode == 1 and done.stdout == ""
    assert "\n  problem  num_target_layers  " in done.stderr and "Not started." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "asked for --model-path, found none"),
        (["--model-path", "a/b", "--speculative-algorithm", "eagle3"], "python -m sglang.launch_server yourself"),
        (["--model-path", "a/b", "--config", "/no/such.yaml"], "check the path"),
    ],
)
def test_arguments_that_cannot_be_served(arguments: list[str], text: str, capsys) -> None:
    assert cli.main(["serve", *arguments]) == 1
    error = capsys.readouterr().err
    assert "sglang-dspark serve: " in error and text in error


def test_the_process_becomes_the_server(words: list[str], monkeypatch, capsys) -> None:
    """With a child in between, a supervisor's SIGTERM would stop the parent and leave the server."""
    became: list[tuple[str, list[str], dict[str, str]]] = []

    def become(*given) -> None:
        became.append(given)
        raise SystemExit

    monkeypatch.setattr(serve.os, "execvpe", become)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    with pytest.raises(SystemExit):
        cli.main(["serve", *words, "--port", "4"])
    ((program, command, environment),) = became
    assert program == command[0] == sys.executable and command[1:3] == ["-m", "sglang.launch_server"]
    assert command[3 : 3 + len(words) + 2] == [*words, "--port", "4"]
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1" and environment["PATH"] == os.environ["PATH"]
    assert shlex.join(command[3:]) in capsys.readouterr().err


def test_other_commands_still_refuse_what_they_do_not_know(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--quick", "--port", "4"])
    assert end.value.code == 2 and "unrecognized arguments: --port 4" in capsys.readouterr().err
