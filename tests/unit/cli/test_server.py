"""The server's child process: gone behind the block whatever it does, and its log is in the error when it dies.

A small program takes launch_server's place, with children of its own that do not end by themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

from sglang_dspark.cli import server as server_module
from sglang_dspark.cli.server import Server, ServerFailed, free_port

# Writes the process ids of itself and a child, then does what its first argument says. The child ignores SIGTERM, but
# where its server "drains" it must get none.
PROGRAM = """
import http.server, json, os, signal, subprocess, sys, time
ignore = "" if sys.argv[1] == "drains" else "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
sleeper = f"import signal, time; {ignore}print(1, flush=True); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-S", "-c", sleeper], stdout=subprocess.PIPE)
child.stdout.readline()
open(os.environ["PIDS"], "w").write(f"{os.getpid()} {child.pid}")
what, port = sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1])
print("the log begins", flush=True)
for i in range(50):
    print("line", i, flush=True)
if what == "die":
    print("the reason why", file=sys.stderr, flush=True)
    sys.exit(3)
if what == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "drains":
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), os._exit(7 if child.poll() is None else 8)))
if what == "silent":
    time.sleep(300)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, b"ok")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(400 if body.get("bad") else 200, json.dumps({"got": body}).encode())
    def answer(self, status, body):
        self.send_response(status); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch) -> Path:
    """Starts the program in launch_server's place, in the same way."""
    path, start = tmp_path / "program.py", subprocess.Popen
    path.write_text(PROGRAM)
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))

    def popen(command: list[str], **options) -> subprocess.Popen:
        assert command[:3] == [sys.executable, "-m", "sglang.launch_server"]
        return start([sys.executable, "-S", str(path), *command[3:]], **options)

    monkeypatch.setattr(server_module.subprocess, "Popen", popen)
    monkeypatch.setattr(server_module, "_STOP_SECONDS", 2.0)
    return path


def pids(tmp_path: Path) -> list[int]:
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent (a zombie) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_gone(tmp_path: Path) -> None:
    deadline = time.monotonic() + 5
    while any(map(alive, pids(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids(tmp_path)))


@pytest.mark.parametrize("what", ["serve", "stubborn"])
def test_the_whole_group_is_gone_behind_the_block(tmp_path: Path, what: str) -> None:
    """SGLang's schedulers are children of the server: left alone, they hold memory and the port for ever."""
    with Server([what], tmp_path / "log", ready_seconds=20) as server:
        assert all(map(alive, pids(tmp_path)))
        assert server.get("/health") == b"ok"
    assert_gone(tmp_path)
    server.stop()  # a second stop has nothing to do


def test_the_group_is_gone_after_an_error_inside_the_block(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Server(["serve"], tmp_path / "log", ready_seconds=20):
        raise KeyError
    assert_gone(tmp_path)


def test_a_server_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    """Without it, the reason is in a file that a CI machine has already thrown away."""
    with pytest.raises(ServerFailed) as failure, Server(["die"], tmp_path / "log", ready_seconds=20):
        pass
    message = str(failure.value)
    assert "the server ended while starting" in message
    assert "the reason why" in message and "line 49" in message
    assert "the log begins" not in message, "the tail is the end, not the whole"
    assert str(tmp_path / "log") in message
    assert_gone(tmp_path)


def test_a_server_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    waits: list[float] = []
    with (
        pytest.raises(ServerFailed, match=r"not ready within 2 s[\s\S]*line 49"),
        Server(["silent"], tmp_path / "log", ready_seconds=2.0, on_wait=waits.append),
    ):
        pass
    assert waits and waits == sorted(waits)
    assert_gone(tmp_path)


def test_answers_and_refusals(tmp_path: Path, monkeypatch) -> None:
    """An HTTP error carries the server's own message; a proxy set in the environment is not asked."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Server(["serve"], tmp_path / "log", ready_seconds=20) as server:
        assert server.post("/generate", {"text": "x"}) == {"got": {"text": "x"}}
        with pytest.raises(ServerFailed, match=r'/generate: HTTP 400: \{"got"'):
            server.post("/generate", {"bad": True})
    with pytest.raises(urllib.error.URLError):
        server.get("/health", timeout=2)


def test_the_environment(tmp_path: Path) -> None:
    """The variables beside the process's own; a crashed SGLang must not wait a minute for dumps."""
    with Server(["serve"], tmp_path / "log", environment={"SGLANG_USE_CPU_ENGINE": "7"}, ready_seconds=20):
        environment = Path(f"/proc/{pids(tmp_path)[0]}/environ").read_text().split("\0")
    for entry in ("SGLANG_USE_CPU_ENGINE=7", "SGLANG_PYSPY_DUMP_BEFORE_CRASH=0", f"PATH={os.environ['PATH']}"):
        assert entry in environment


def test_the_command_can_be_typed(tmp_path: Path) -> None:
    """It is printed for people to copy: a path with a space must arrive as one argument."""
    server = Server(["--model-path", "/a b/c"], tmp_path / "log", environment={"X": "1 2"}, port=1234)
    assert server.command == (
        "X='1 2' python -m sglang.launch_server --model-path '/a b/c' --host 127.0.0.1 --port 1234"
    )


def test_draining_asks_the_server_alone(tmp_path: Path) -> None:
    """A signal to the whole group would end the processes that run the model, with every request in them."""
    with Server(["drains"], tmp_path / "log", ready_seconds=20) as server:
        assert server.pid == pids(tmp_path)[0]
        assert server.drain(10) == 7, "the child was ended too"
    assert_gone(tmp_path)


def test_a_server_that_does_not_drain(tmp_path: Path) -> None:
    with Server(["stubborn"], tmp_path / "log", ready_seconds=20) as server:
        with pytest.raises(ServerFailed, match=r"still runs after 1 s[\s\S]*line 49"):
            server.drain(1)
    assert_gone(tmp_path)


def test_a_server_that_was_not_started(tmp_path: Path) -> None:
    server = Server([], tmp_path / "log")
    server.stop()
    for use in (server.wait, server.drain, lambda: server.pid):
        with pytest.raises(ServerFailed, match="not started"):
            use()
    assert str(tmp_path / "log") in server.log_tail()


def test_free_ports_are_free() -> None:
    assert 1024 <= free_port() < 65536
