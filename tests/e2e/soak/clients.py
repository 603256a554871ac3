"""The soak's clients: so many at once over HTTP, each request put, and broken off, as its plan says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.soak.workload import Plan, Question

# A request that takes longer hangs. On two cores that much other work shares, one that ends with the context has been
# seen to take more than five minutes.
TIMEOUT_SECONDS = 1800.0
LONGEST_EVENT_BYTES = 2**20


@dataclass(frozen=True)
class Reply:
    """What came back for one request; `outcome` is answered, aborted, disconnected or failed."""

    plan: Plan
    outcome: str
    tokens: list[int] | None = None  # the completions route does not say
    text: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    pieces: tuple[str, ...] = ()  # of a stream: the text so far, at every event
    error: str = ""


async def run_clients(
    url: str,
    plans: Sequence[Plan],
    questions: Sequence[Question],
    clients: int,
    seen: Callable[[Reply], None],
) -> None:
    """Put every request, `clients` of them under way at any time, and hand each reply to `seen`."""
    waiting = iter(plans)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(
        url, connector=connector, timeout=timeout, read_bufsize=LONGEST_EVENT_BYTES
    ) as session:
        await asyncio.gather(*(_client(session, waiting, questions, seen) for _ in range(clients)))


async def _client(
    session: aiohttp.ClientSession,
    waiting: Iterator[Plan],
    questions: Sequence[Question],
    seen: Callable[[Reply], None],
) -> None:
    for plan in waiting:
        seen(await _put(session, plan, questions[plan.question]))


async def _put(session: aiohttp.ClientSession, plan: Plan, question: Question) -> Reply:
    asking = asyncio.create_task(_ask(session, plan, question))
    if plan.fate != "finish":
        done, _ = await asyncio.wait([asking], timeout=plan.patience)
        if not done and plan.fate == "disconnect":
            asking.cancel()  # closes the connection
            await asyncio.gather(asking, return_exceptions=True)
            return Reply(plan, "disconnected")
        if not done:
            async with session.post("/abort_request", json={"rid": request_id(plan)}) as answer:
                answer.raise_for_status()
    try:
        return await asking
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        return Reply(plan, "failed", error=f"{type(error).__name__}: {error}")


def request_id(plan: Plan) -> str:
    """The name an abort goes by; SGLang aborts every request whose name begins with it, so all are equally long."""
    return f"soak-{plan.number:06d}"


async def _ask(session: aiohttp.ClientSession, plan: Plan, question: Question) -> Reply:
    path, body = _request(plan, question)
    async with session.post(path, json=body) as answer:
        if answer.status != 200:
            text = await answer.text()
            # Where a request was aborted before it ran, SGLang answers with an error that says so.
            outcome = "aborted" if plan.fate == "abort" and "abort" in text.lower() else "failed"
            return Reply(plan, outcome, error=f"HTTP {answer.status}: {text[:300]}")
        if plan.route == "stream":
            return await _read_stream(answer, plan)
        found = await answer.json()
    if plan.route == "completions":
        choice = found["choices"][0]
        return Reply(plan, _outcome(choice["finish_reason"]), None, choice["text"], found["usage"])
    return _reply(plan, found)


def _request(plan: Plan, question: Question) -> tuple[str, dict[str, Any]]:
    sampling = {"temperature": 0, **question.sampling, **plan.sampling}
    if plan.route == "completions":
        sampling["max_tokens"] = sampling.pop("max_new_tokens")
        return "/v1/completions", {
            "model": "default",
            "prompt": list(question.ids),
            "rid": request_id(plan),
            **sampling,
        }
    body: dict[str, Any] = {"input_ids": list(question.ids), "rid": request_id(plan), "sampling_params": sampling}
    if plan.route == "stream":
        body["stream"] = True
    if plan.top_logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": plan.top_logprobs}
    return "/generate", body


async def _read_stream(answer: aiohttp.ClientResponse, plan: Plan) -> Reply:
    pieces, last = [], None
    async for line in answer.content:
        if line.startswith(b"data: {"):
            last = json.loads(line[6:])
            if "error" in last:
                outcome = "aborted" if plan.fate == "abort" and "abort" in str(last).lower() else "failed"
                return Reply(plan, outcome, error=str(last["error"])[:300])
            pieces.append(last["text"])
    if last is None:
        return Reply(plan, "failed", error="the stream ended without an event")
    return _reply(plan, last, tuple(pieces))


def _reply(plan: Plan, found: dict[str, Any], pieces: tuple[str, ...] = ()) -> Reply:
    meta = found["meta_info"]
    return Reply(plan, _outcome(meta["finish_reason"]["type"]), found["output_ids"], found["text"], meta, pieces)


def _outcome(finish_reason: str) -> str:
    return "aborted" if finish_reason == "abort" else "answered"
