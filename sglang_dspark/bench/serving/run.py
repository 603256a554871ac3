"""A server with and without speculation under SGLang's own load generator, at several concurrencies.

One server after another, since two seldom fit on the same devices. Greedy answers are compared before a server with
speculation is timed. A server whose acceptance is forced writes wrong text on purpose: it is not compared, and instead
its accepted length must be the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sglang_dspark.bench.rows import Row, Run
from sglang_dspark.server_http import request

from . import client as sglang_client
from . import greedy_parity
from .greedy_parity import Answer
from .workload import Workload

BENCHMARK = "serving"
PLAIN, DSPARK = "no speculation", "dspark"
CLIENT = "SGLang's benchmark (python -m sglang.benchmark.serving)"
# SGLang 0.5.23, environ.py. Its DSPARK worker reads it once, when the server starts, and overwrites what verification
# found; "match-expected", the default way, alternates between the two whole numbers around the one asked for.
FORCED_VARIABLE = "SGLANG_SIMULATE_ACC_LEN"
# A short run may end between two of the whole numbers.
FORCED_TOLERANCE = 0.1


@dataclass(frozen=True)
class Subject:
    """One server to be timed."""

    name: str
    start: Callable[[], AbstractContextManager[RunningServer]]
    speculative: bool
    forced_length: float | None = None


@dataclass(frozen=True)
class RunningServer:
    """A server that answers: where, and how it was started ("unknown" for one that was running already)."""

    url: str
    command: str


@dataclass(frozen=True)
class Point:
    """So many requests, so many of them under way at a time."""

    concurrency: int
    requests: int


@dataclass(eq=False)
class Setting:
    """One benchmark: of what, with what, and what to call it."""

    client: sglang_client.SglangClient
    subjects: Sequence[Subject]
    points: Sequence[Point]
    workload: Workload
    preset: str
    run: Run
    parity_texts: Sequence[str]
    parity_tokens: int
    tie: float | None  # None: what the server's number format makes of one
    seed: int = 1
    say: Callable[[str], None] = print


class NotForced(RuntimeError):
    """A server was to accept a given length and did not."""


def forced_name(length: float) -> str:
    """What a server whose accepted length is forced is called."""
    return f"{DSPARK}, {length:g} forced"


def points(concurrencies: Sequence[int], rounds: int, workload: Workload) -> list[Point]:
    """Each concurrency with ``rounds`` requests for every one under way.

    Raises:
        ValueError: there are fewer different prompts than one concurrency needs.
    """
    found = [Point(concurrency, concurrency * rounds) for concurrency in sorted(set(concurrencies))]
    needed = max(point.requests for point in found)
    if workload.available is not None and workload.available < needed:
        raise ValueError(
            f"concurrency {found[-1].concurrency} with {rounds} rounds takes {needed} different prompts, found "
            f"{workload.available}: give more prompts, fewer rounds or a lower concurrency (a prompt that is asked "
            "twice comes from the prefix cache)"
        )
    return found


def measure(setting: Setting) -> Iterator[Row]:
    """Every row, as it is measured.

    Raises:
        ParityFailed: a server with speculation answers something else.
        NotForced: a server did not accept the length that was asked for.
        ClientFailed: SGLang's benchmark failed, or requests did.
    """
    reference = _Reference()
    for subject in setting.subjects:
        with subject.start() as server:
            info = server_info(server.url)
            parity = _compared(setting, subject, server.url, info, reference)
            setting.say(f"  parity: {parity}")
            for point in setting.points:
                yield _timed(setting, subject, server, info, point, parity, reference)


@dataclass(eq=False)
class _Reference:
    """What the server without speculation answered: to the parity prompts, and under each concurrency."""

    answers: list[Answer] = field(default_factory=list)
    texts: dict[int, list[str]] = field(default_factory=dict)


def _compared(setting: Setting, subject: Subject, url: str, info: Mapping[str, Any], reference: _Reference) -> str:
    if subject.forced_length is not None:
        return "not compared: forced acceptance writes wrong text"
    texts, tokens = setting.parity_texts, setting.parity_tokens
    setting.say(f"  asking {len(texts)} greedy answers of {tokens} tokens")
    found = greedy_parity.answers(greedy_parity.asker(url), texts, tokens, with_likeliest=not subject.speculative)
    if not subject.speculative:
        reference.answers = found
        return f"{len(found)} greedy answers to compare with"
    tie = setting.tie
    if tie is None:
        tie = 0.0 if info.get("dtype") == "float32" else greedy_parity.HALF_TYPE_TIE
    return str(greedy_parity.compare(texts, reference.answers, found, tie))


def _timed(
    setting: Setting,
    subject: Subject,
    server: RunningServer,
    info: Mapping[str, Any],
    point: Point,
    parity: str,
    reference: _Reference,
) -> Row:
    arguments = client_arguments(setting, server.url, point)
    setting.say(f"  timing {point.requests} requests, {point.concurrency} at once")
    result = setting.client.run(arguments)
    figures = sglang_client.figures(result, point.requests)
    texts = list(result.get("generated_texts", ()))
    if not subject.speculative:
        reference.texts[point.concurrency] = texts
    elif subject.forced_length is not None:
        _check_forced(subject.forced_length, figures.get("accepted_length_tokens"))
    elif expected := reference.texts.get(point.concurrency):
        same = sum(one == other for one, other in zip(expected, texts, strict=True))
        figures["equal_answers_share"] = same / len(expected)
    how: dict[str, int | str | bool] = {
        "client": sglang_client.command(arguments),
        "server": server.command,
        "parity": parity,
        "warm_up_requests": min(point.concurrency, point.requests),
        "wrong_text": subject.forced_length is not None,
        **_server_facts(info),
    }
    case = {**setting.workload.case, "concurrency": point.concurrency, "requests": point.requests}
    row = Row(BENCHMARK, subject.name, setting.preset, case, how, figures, True, setting.run)
    setting.say(f"  {line(row)}")
    return row


def client_arguments(setting: Setting, url: str, point: Point) -> list[str]:
    """The arguments of SGLang's benchmark for one run. Flushing the cache also restarts the server's counts."""
    return [
        *("--backend", "sglang", "--base-url", url, *setting.workload.arguments),
        *("--num-prompts", str(point.requests), "--max-concurrency", str(point.concurrency)),
        *("--warmup-requests", str(min(point.concurrency, point.requests)), "--flush-cache"),
        *("--seed", str(setting.seed), "--disable-tqdm"),
    ]


def line(row: Row) -> str:
    """One run in a line."""
    figures = row.figures
    accepted = figures.get("accepted_length_tokens")
    return (
        f"{row.subject}, {row.case['concurrency']} at once: {figures['output_tokens_per_s']:.1f} tokens/s, "
        f"first token after {figures['ttft_p50_ms']:.0f} ms, {figures['tpot_p50_ms']:.1f} ms a token (p50)"
        + (f", accepted length {accepted:.2f}" if accepted else "")
    )


def server_info(url: str) -> dict[str, Any]:
    """What the server at a URL says of itself; raises `ServerError` where nobody answers."""
    return dict(request(f"{url.rstrip('/')}/server_info", None, timeout_s=60.0))


def _check_forced(asked: float, found: float | None) -> None:
    if found is None:
        raise NotForced(
            f"asked for a forced accepted length of {asked:g}, and the server reports none: the run was shorter than "
            "its --decode-log-interval (40 steps by default); give more requests or longer answers"
        )
    if abs(found - asked) > FORCED_TOLERANCE * asked:
        raise NotForced(
            f"asked for a forced accepted length of {asked:g}, the server reports {found:.2f}: {FORCED_VARIABLE} was "
            "not honoured, and nothing that was timed would mean what it says. Is it above the draft's block size + 1?"
        )


def _server_facts(info: Mapping[str, Any]) -> dict[str, int | str | bool]:
    names = ("version", "dtype", "kv_cache_dtype", "tp_size", "dp_size", "quantization", "speculative_num_draft_tokens")
    return {f"server_{name}": info[name] for name in names if isinstance(info.get(name), int | str)}
