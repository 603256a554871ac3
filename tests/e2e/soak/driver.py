"""Runs a soak: the answers without speculation first, then all requests against the server with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sglang_dspark.cli.server import Server
from tests.e2e.serving import AT_ONCE
from tests.e2e.soak.accounting import MemorySample, metric, sample_memory, slots
from tests.e2e.soak.clients import Reply, run_clients
from tests.e2e.soak.verdict import Expected, complaints
from tests.e2e.soak.workload import Question, plan

logger = logging.getLogger(__name__)
PROGRESS = 500  # requests between two lines of the log


@dataclass
class Outcome:
    """What a soak has shown."""

    slots_before: int
    slots_after: int = -1
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    retracted: float = 0.0
    seconds: float = 0.0

    def describe(self) -> str:
        """One line of figures."""
        counts = ", ".join(f"{name} {self.counts[name]}" for name in sorted(self.counts))
        first, last = (self.memory[place].bytes_of for place in (0, -1))
        memory = ", ".join(f"{name} {first[name] >> 20} to {last.get(name, 0) >> 20} MB" for name in first)
        rest = f"retractions {self.retracted:.0f}, complaints {len(self.complaints)}, {self.seconds:.0f} s"
        return f"{counts}, {rest}; {memory}"


def expected_answers(server: Server, asked: Sequence[Question]) -> list[Expected]:
    """What the server without speculation answers to every question."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda question: _expected(server, question), asked))


def _expected(server: Server, question: Question) -> Expected:
    body = {
        "input_ids": list(question.ids),
        "sampling_params": {"temperature": 0, **question.sampling},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    answer = server.post("/generate", body)
    meta = answer["meta_info"]
    leads = [best[0] - second[0] for best, second in meta["output_top_logprobs"]]
    logprobs = [logprob for logprob, *_ in meta["output_token_logprobs"]]
    return Expected(answer["output_ids"], answer["text"], meta["finish_reason"], logprobs, min(leads))


def soak(
    server: Server,
    asked: Sequence[Question],
    expected: Sequence[Expected],
    *,
    requests: int,
    clients: int,
    seed: int,
    vocab_size: int,
) -> Outcome:
    """Put `requests` requests to a server with speculation, `clients` at once, and judge every reply."""
    found = Outcome(slots_before=slots(server))
    started = time.monotonic()

    def seen(reply: Reply) -> None:
        question = reply.plan.question
        found.counts[reply.outcome] += 1
        found.counts["answered at temperature 0"] += reply.outcome == "answered" and reply.plan.greedy
        found.counts["answered after a retraction"] += bool(reply.meta.get("num_retractions"))
        for complaint in complaints(reply, asked[question], expected[question], vocab_size):
            found.complaints.append(f"request {reply.plan.number} ({reply.plan}): {complaint}")
            logger.warning(found.complaints[-1])
        if _done(found) % PROGRESS == 0:
            found.seconds = time.monotonic() - started
            logger.info(found.describe())

    async def run() -> None:
        plans = [plan(seed, number, asked) for number in range(requests)]
        sampling = asyncio.create_task(sample_memory(server, lambda: _done(found), found.memory))
        try:
            await run_clients(f"http://127.0.0.1:{server.port}", plans, asked, clients, seen)
        finally:
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling

    asyncio.run(run())
    found.seconds = time.monotonic() - started
    found.slots_after = slots(server)
    found.retracted = metric(server, "num_retracted_requests_total")
    return found


def _done(found: Outcome) -> int:
    return sum(found.counts[outcome] for outcome in ("answered", "aborted", "disconnected", "failed"))
