"""What the soak reads off the server from outside: its pools, its retractions and its memory."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from sglang_dspark.cli.server import Server, ServerFailed

SAMPLE_SECONDS = 2.0
# SGLang refreshes the gauges of an idle server every 30 s.
PATIENCE_SECONDS = 45.0
_POOL_METRICS = ("kv_available_tokens", "kv_evictable_tokens", "kv_used_tokens", "num_running_reqs", "num_queue_reqs")


@dataclass(frozen=True)
class MemorySample:
    """Resident bytes of every process of the server when so many requests were done."""

    done: int
    bytes_of: dict[str, int]


def metric(server: Server, name: str) -> float:
    """A gauge's or counter's value; 0 for a counter that nothing has counted."""
    found = re.findall(rf"^sglang:{name}\{{[^}}]*\}} (\S+)$", server.get("/metrics").decode(), re.MULTILINE)
    return sum(map(float, found))


def pools(server: Server) -> dict[str, float]:
    """The pools of an idle server whose cache holds nothing: every slot must be free then.

    Raises:
        ServerFailed: the server did not become idle, or its gauges do not say so.
    """
    # SGLang flushes an idle server only. It counts a request whose client has left as running until it has dropped it.
    server.get(f"/flush_cache?timeout={PATIENCE_SECONDS}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = {name: metric(server, name) for name in _POOL_METRICS}
        if not any(found[name] for name in _POOL_METRICS[1:]):
            return found
        if time.monotonic() > deadline:
            raise ServerFailed(f"the gauges of the idle server show no empty cache: {found}\n{server.log_tail()}")
        time.sleep(0.5)


def memory(server: Server) -> dict[str, int]:
    """Resident bytes, by what each process calls itself."""
    main = psutil.Process(server.pid)
    found = {"server": main.memory_info().rss}
    for child in main.children(recursive=True):
        name = next((word for word in child.cmdline() if word.startswith("sglang::")), "")
        if name:
            found[name] = found.get(name, 0) + child.memory_info().rss
    return found


async def sample_memory(server: Server, done: Callable[[], int], samples: list[MemorySample]) -> None:
    """Add a sample every few seconds, until cancelled."""
    while True:
        samples.append(MemorySample(done(), memory(server)))
        await asyncio.sleep(SAMPLE_SECONDS)
