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
PATIENCE_SECONDS = 45.0
# Long enough for SGLang to report a step of it: the gauges then say that a request runs, and are refreshed at once when
# none does. Otherwise an idle server refreshes them every 30 s.
REPORTED_TOKENS = 200


@dataclass(frozen=True)
class MemorySample:
    """Resident bytes of every process of the server when so many requests were done."""

    done: int
    bytes_of: dict[str, int]


def metric(server: Server, name: str) -> float:
    """A gauge's or counter's value; 0 for a counter that nothing has counted."""
    found = re.findall(rf"^sglang:{name}\{{[^}}]*\}} (\S+)$", server.get("/metrics").decode(), re.MULTILINE)
    return sum(map(float, found))


def slots(server: Server) -> int:
    """KV slots of an idle server that are free, or held by the prefix cache alone; all of them, when none is lost.

    Raises:
        ServerFailed: the server did not become idle, or its gauges do not say so: a slot is still in use.
    """
    # SGLang flushes an idle server only. It counts a request whose client has left as running until it has dropped it.
    server.get(f"/flush_cache?timeout={PATIENCE_SECONDS}")
    sampling = {"temperature": 0, "max_new_tokens": REPORTED_TOKENS, "ignore_eos": True}
    server.post("/generate", {"input_ids": [5], "sampling_params": sampling})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(metric(server, name) for name in ("num_running_reqs", "num_queue_reqs", "kv_used_tokens")):
        if time.monotonic() > deadline:
            raise ServerFailed(f"the gauges of the server do not show that it is idle\n{server.log_tail()}")
        time.sleep(0.2)
    return round(metric(server, "kv_available_tokens") + metric(server, "kv_evictable_tokens"))


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
