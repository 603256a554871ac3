"""The command line: what it prints, and what its exit status says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sglang_dspark
from sglang_dspark import cli
from sglang_dspark.cli import demo


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_demo_path(cache: Path, capsys) -> None:
    """Scripts read the folder from standard output: one line, nothing else, and both checkpoints are there."""
    assert cli.main(["demo", "--path"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    folder = Path(line)
    assert folder.is_relative_to(cache)
    for checkpoint in ("target", "draft"):
        assert (folder / checkpoint / "config.json").is_file()
        assert list((folder / checkpoint).glob("*.safetensors"))


def test_demo_path_in_a_process_of_its_own(cache: Path) -> None:
    """As a shell runs it; importing SGLang for this would take ten seconds and may fail."""
    code = (
        "import sys; from sglang_dspark.cli import main; status = main(['demo', '--path']); "
        "print('sglang' in sys.modules, status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    path, last = done.stdout.splitlines()
    assert (Path(path) / "draft").is_dir()
    assert last == "False 0"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "demo" in text
    if arguments[0] == "demo":
        assert "example: sglang-dspark demo" in text


def test_version(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == f"sglang-dspark {sglang_dspark.__version__}"


@pytest.mark.parametrize("arguments", [["no-such-command"], [], ["demo", "--no-such-option"], ["demo", "--port", "x"]])
def test_a_command_line_that_means_nothing(arguments: list[str], capsys) -> None:
    """Exit status 0 would let a script go on."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert "usage: sglang-dspark" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (RuntimeError("the server ended while starting"), 1, "sglang-dspark demo: the server ended while starting"),
        (OSError("no space"), 1, "no space"),
        (ValueError("bad value"), 1, "bad value"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_failure_is_a_message_and_a_status(
    monkeypatch, capsys, error: BaseException, status: int, shown: str
) -> None:
    """A traceback says nothing to whoever typed the command."""

    def fail(arguments) -> int:
        raise error

    monkeypatch.setattr(demo, "run", fail)
    assert cli.main(["demo"]) == status
    assert shown in capsys.readouterr().err


def test_an_unforeseen_error_keeps_its_traceback(monkeypatch) -> None:
    """A bug of ours must not look like a bad argument."""

    def fail(arguments) -> int:
        raise AssertionError

    monkeypatch.setattr(demo, "run", fail)
    with pytest.raises(AssertionError):
        cli.main(["demo"])


class FakeServer:
    """A server that answers at once; the class remembers how it was started."""

    started: list[list[str]] = []
    answers: list[list[int]] = []

    def __init__(self, arguments: list[str], log: Path, *, environment, port=None, on_wait=None) -> None:
        self.started.append(arguments)
        self.command, self.port = "python -m sglang.launch_server", port or 1

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def post(self, path: str, body: dict) -> dict:
        assert path == "/generate" and body["sampling_params"]["temperature"] == 0
        meta = {"spec_accept_length": 3.5, "completion_tokens": 7, "spec_verify_ct": 2}
        return {"text": "text", "output_ids": self.answers[len(self.started) - 1], "meta_info": meta}


@pytest.mark.parametrize(
    ("answers", "status", "out", "err"),
    [([[1, 2], [1, 2]], 0, "OK: the same answer", ""), ([[1, 2], [1, 3]], 1, "", "FAILED: the answers")],
)
def test_the_demo_compares_the_two_answers(cache: Path, monkeypatch, capsys, answers, status, out, err) -> None:
    """A demo that says OK whatever came back would hide that speculation changes the text."""
    monkeypatch.setattr(FakeServer, "started", [])
    monkeypatch.setattr(FakeServer, "answers", answers)
    monkeypatch.setattr(demo, "Server", FakeServer)
    assert cli.main(["demo"]) == status
    shown = capsys.readouterr()
    assert out in shown.out and err in shown.err
    plain, fast = FakeServer.started
    assert "--speculative-algorithm" not in plain
    assert fast[: len(plain)] == plain
    assert fast[len(plain) : len(plain) + 2] == ["--speculative-algorithm", "dspark"]
    assert "accepted length 3.50" in shown.out
