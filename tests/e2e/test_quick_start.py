"""docs/quick-start.md, followed from top to bottom as a new user would: every command on it, in a shell, in order.

Only the named placeholders differ (checkpoints and port). A command that this machine cannot run is listed in
`NOT_HERE` with the reason; one that is new on the page is run without being listed anywhere. The package is installed
as the page says, from its sources into an environment of its own, so this also proves that a wheel is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_dspark.cli.server import free_port
from sglang_dspark.demo import ensure

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
NOT_HERE = {"docker run": "needs Docker, SGLang's ROCm image and an AMD card"}
# What a wheel is built from.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "sglang_dspark", "hip")
# What the output of a command must hold; the command is known by a part of it.
EXPECTED = {
    "sglang-dspark doctor": r"(?m)^0 problem\(s\), \d+ warning\(s\)$",
    "serve --dry-run": r"SGLANG_USE_CPU_ENGINE=1 .*-m sglang\.launch_server .* --speculative-algorithm dspark",
    "spec_accept_length": r"^[1-8]\.\d+\n$",
    "/v1/chat/completions": r'"finish_reason":',
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S)


# What a line on the page shows of a machine or a moment that is not this one's.
VARIES = {
    "DSparkWorker": r"\w+",
    "amd (gfx942)": r"\w+(?: \(\w+\))?",
    "=hip": r"=\w+",
    "accept len: 3.10": r"accept len: \d+\.\d+",
    "…": ".*",
}


def expected_line(start: str) -> str:
    """A line that the page shows, as a pattern of what the log must hold."""
    (line,) = (text.strip() for text in blocks("text") if start in text)
    pattern = re.escape(line)
    for shown, varies in VARIES.items():
        pattern = pattern.replace(re.escape(shown), varies)
    return pattern


class Shell:
    """Runs blocks one after another in one folder; variables that a block exports stay."""

    def __init__(self, folder: Path, environment: dict[str, str], placeholders: dict[str, str]) -> None:
        self.folder, self.environment, self._placeholders = folder, environment, placeholders

    def run(self, block: str) -> subprocess.CompletedProcess[str]:
        for shown, here in self._placeholders.items():
            block = block.replace(shown, here)
        script = f"set -euo pipefail\n{block}\nenv -0 > .environment\n"
        # A server that ended while it started never answers; timeout ends the block, and the log says why.
        command = ["timeout", "900", "bash", "-c", script]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}\n{self.log()[-3000:]}"
        lines = (self.folder / ".environment").read_text().split("\0")
        self.environment = dict(line.split("=", 1) for line in lines if "=" in line)
        return done

    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""


def left_in(folder: Path) -> list[int]:
    """The processes that stand in a folder: a background job and its children, whatever they call themselves."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if path.readlink() == folder.resolve():
                found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A checkout, and a Python that has SGLang and not yet this package, as in an image."""
    assert shutil.which("curl"), "the page asks the server with curl: apt-get install curl"
    folder = tmp_path_factory.mktemp("quick-start")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name, **({"symlinks": True} if copy is shutil.copytree else {}))
    python = folder / ".python"
    venv.create(python, symlinks=True, with_pip=False)
    site = next(python.glob("lib/python*/site-packages"))
    # This environment's packages behind its own: SGLang is there, and our wheel comes before the checkout.
    (site / "image.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = python / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {python}/bin/python -m pip "$@"\n')
    pip.chmod(0o755)
    pair, port = ensure(), free_port()
    environment = {
        **os.environ,
        "PATH": f"{python / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(python),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        # setuptools is here already: no index is asked for it.
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONPATH": "",
        "no_proxy": "localhost",
    }
    draft, target = str(pair.draft), str(pair.target)
    # The longer name first: the other is its beginning.
    places = {"/models/MiniMax-M3-DSpark": draft, "/models/MiniMax-M3": target, "PORT=30000": f"PORT={port}"}
    shell = Shell(folder, environment, places)
    yield shell
    for number, seconds in ((signal.SIGTERM, 60), (signal.SIGKILL, 10)):
        deadline = time.monotonic() + seconds
        for pid in left_in(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while left_in(folder) and time.monotonic() < deadline:
            time.sleep(0.2)


def test_the_page_from_top_to_bottom(shell: Shell) -> None:
    """The expected lines are compared with the real log, so a change of the worker's format fails here."""
    seen: set[str] = set()
    for block in blocks("sh"):
        if reasons := [what for what in NOT_HERE if what in block]:
            seen |= set(reasons)
            continue
        done = shell.run(block)
        for what in (what for what in EXPECTED if what in block):
            seen.add(what)
            assert re.search(EXPECTED[what], done.stdout), f"{block}\n{done.stdout[-3000:]}"
        if block.startswith("pip install"):
            found = subprocess.run(
                ["python", "-c", "import sglang_dspark; print(sglang_dspark.__file__)"],
                env=shell.environment, cwd="/", capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert found.stdout.startswith(str(shell.folder / ".python")), "the tests' own checkout was found instead"
    assert seen == {*NOT_HERE, *EXPECTED}, "a command is listed here and no longer on the page"
    active = [line for line in shell.log().splitlines() if " active: " in line]
    assert len(active) == 1 and re.search(expected_line("active"), active[0]), shell.log()[-3000:]
    assert re.search(expected_line("accept len"), shell.log())
    answer = json.loads((shell.folder / "answer.json").read_text())
    assert answer["meta_info"]["completion_tokens"] == 128


def test_every_block_is_a_command_or_an_expected_line() -> None:
    """An indented command, or one in a block of another kind, would be run by nobody."""
    languages = re.findall(r"^```(\S+)$", PAGE, flags=re.M)
    assert set(languages) == {"sh", "text"} and PAGE.count("```") == 2 * len(languages)
    assert not re.search(
        r"^(    |\t)(sglang-dspark|pip|python|curl|export)\b", re.sub(r"```.*?```", "", PAGE, flags=re.S), re.M
    )
