"""Faults that a server meets while it starts: it ends by itself, with what was asked, what was found and what to do."""

from __future__ import annotations

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_dspark.cli.server import Server, ServerFailed
from sglang_dspark.demo import DemoPair
from tests.e2e.faults.poison import not_a_number, poisoned, truncated

pytestmark = pytest.mark.e2e

# Writes the beginning of its output, as a compiler does until the disk is full.
FULL_DISK = """#!/bin/sh
if [ "$1" = --version ]; then echo "a compiler 1.0"; exit 0; fi
while [ "$1" != -o ]; do shift; done
printf half > "$2"
echo "fatal error: error writing to $2: No space left on device" >&2
exit 1
"""


@pytest.fixture(scope="module")
def refusals(
    pair: DemoPair, server_of: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The end of each server's log; they start side by side, since each waits more than it works."""
    folder = tmp_path_factory.mktemp("starting")
    compiler, cache = folder / "compiler", folder / "kernels"
    compiler.write_text(FULL_DISK)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    named = {
        "CXX": str(compiler),
        "SGLANG_DSPARK_CACHE": str(cache),
        "SGLANG_DSPARK_CONTEXT_KV": "host",
    }
    servers = {
        "truncated": server_of(truncated(pair, folder / "truncated"), "truncated"),
        "not a number": server_of(poisoned(pair, folder / "nan", not_a_number), "nan"),
        "full disk": server_of(pair, "full", dtype="bfloat16", **named),
    }
    with ThreadPoolExecutor(len(servers)) as pool:
        found = dict(zip(servers, pool.map(_refusal, servers.values()), strict=True))
    found["left in the cache"] = " ".join(path.name for path in cache.iterdir())
    return found


def _refusal(server: Server) -> str:
    with pytest.raises(ServerFailed, match="the server ended while starting"), server:
        pass
    return server.log.read_text(errors="replace")


def test_a_truncated_draft(refusals: dict[str, str]) -> None:
    """A download that stopped; SGLang would only warn and go on with defaults."""
    assert "model.safetensors: cannot be read" in refusals["truncated"]
    assert "copy or download it again" in refusals["truncated"]


def test_a_draft_with_a_nan(refusals: dict[str, str]) -> None:
    """One value among many; it would cost all acceptance and say nothing."""
    log = refusals["not a number"]
    assert "layers.1.mlp.down_proj.weight: asked for finite numbers, found 1 of" in log
    assert "[3, 5] (nan)" in log and "use another draft" in log


def test_a_named_backend_that_cannot_be_built(refusals: dict[str, str]) -> None:
    """A disk that is full while the compiler writes; a backend asked for by name never falls back."""
    log = refusals["full disk"]
    assert "asked for a 'host' backend of context_kv" in log
    assert "No space left on device" in log
    assert "choose 'auto' or another backend" in log
    assert refusals["left in the cache"] == "", "half a file is left, for every later start to load"
