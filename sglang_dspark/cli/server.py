"""An SGLang server as a child process: started as it would be typed by hand, asked over HTTP, stopped for sure."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

CPU_ENGINE = {"SGLANG_USE_CPU_ENGINE": "1"}
# SGLang waits a minute for dumps before it lets a crashed process go.
_QUICK_CRASH = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0"}
_STOP_SECONDS = 20.0


class ServerFailed(RuntimeError):
    """The server ended, or was not ready in time; the message holds the end of its log."""


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`python -m sglang.launch_server ARGUMENTS` in a process group of its own.

    Use it as a context manager: it is ready inside the block and gone behind it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        ready_seconds: float = 300.0,
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        """Describe the server; nothing starts yet.

        Args:
            arguments: of launch_server, without host and port.
            log: file for its output.
            environment: variables beside this process's own; they are part of `command`.
            port: of the loopback interface; a free one by default.
            ready_seconds: how long the start may take.
            on_wait: called about once a second while it starts, with the seconds so far.
        """
        self.port = port or free_port()
        self.log = log
        self._arguments = [*arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        self._environment = dict(environment or {})
        self._ready_seconds = ready_seconds
        self._on_wait = on_wait or (lambda seconds: None)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> str:
        """The command as it would be typed."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self._environment.items()]
        return " ".join([*variables, "python -m sglang.launch_server", shlex.join(self._arguments)])

    @property
    def pid(self) -> int:
        """The process id of the server; the processes that run the model are its children."""
        return self._started().pid

    def __enter__(self) -> Server:
        self._start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        environment = {**os.environ, **_QUICK_CRASH, **self._environment}
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        while (seconds := time.monotonic() - started) < self._ready_seconds:
            if self._process is None or self._process.poll() is not None:
                raise ServerFailed(f"the server ended while starting.\n{self.log_tail()}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                self.get("/health", timeout=5.0)
                return
            self._on_wait(seconds)
            time.sleep(0.5)
        raise ServerFailed(f"the server was not ready within {self._ready_seconds:.0f} s.\n{self.log_tail()}")

    def log_tail(self, lines: int = 30) -> str:
        """The end of the server's log, and where the rest is."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join([*text.splitlines()[-lines:], f"(the whole log is {self.log})"])

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the server ends by itself; its exit status.

        Raises:
            ServerFailed: it still runs after so many seconds.
        """
        try:
            return self._started().wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"the server still runs after {seconds:.0f} s.\n{self.log_tail()}") from None

    def drain(self, seconds: float | None = None) -> int:
        """Ask the server to finish the requests it has taken, and to end; its exit status.

        The signal goes to the server alone: its children, which run the model, would end at once.

        Raises:
            ServerFailed: it still runs after so many seconds.
        """
        self._started().terminate()
        return self.wait(seconds)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("the server was not started")
        return self._process

    def stop(self) -> None:
        """End the whole process group, whatever it is doing: asked first, then killed."""
        if self._process is None:
            return
        for number, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _STOP_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                break
        # Children that outlived it belong to the group still.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None

    def get(self, path: str, timeout: float = 60.0) -> bytes:
        """The body of a GET request."""
        return self._request(urllib.request.Request(self._url(path)), timeout)

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 600.0) -> Any:
        """The JSON answer to a POST request.

        Raises:
            ServerFailed: an HTTP error, with the server's own message.
        """
        request = urllib.request.Request(
            self._url(path), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            return json.loads(self._request(request, timeout))
        except urllib.error.HTTPError as error:
            raise ServerFailed(f"{path}: HTTP {error.code}: {error.read().decode(errors='replace')}") from error

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @staticmethod
    def _request(request: urllib.request.Request, timeout: float) -> bytes:
        # A proxy set in the environment must not see loopback requests.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout) as answer:
            return bytes(answer.read())
