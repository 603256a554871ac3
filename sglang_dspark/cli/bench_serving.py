"""`sglang-dspark bench serving`: a server with and without speculation, at several concurrencies.

It starts both servers itself, one after the other, compares their greedy answers, and then has SGLang's own benchmark
(`python -m sglang.benchmark.serving`) ask them. Options it does not know go to both servers, so what you give to
`launch_server` may stand here too. Or it takes servers that are running: --plain-url and --dspark-url.

--forced-acceptance N starts one more server that accepts N tokens a step whatever the draft says (SGLang's
SGLANG_SIMULATE_ACC_LEN): what a better draft would be worth. The text of such a server is wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sglang_dspark.cli.server import CPU_ENGINE, Server

if TYPE_CHECKING:
    from sglang_dspark.bench.serving.run import RunningServer, Subject
    from sglang_dspark.bench.serving.workload import Workload

EXAMPLE = """examples:
  sglang-dspark bench serving --demo --quick
  sglang-dspark bench serving --model-path MiniMax-M3 --draft-path M3-DSpark --tp 8 --concurrency 1 8 32 128
  sglang-dspark bench serving --model-path MiniMax-M3 --draft-path M3-DSpark --tp 8 --forced-acceptance 3 5
  sglang-dspark bench serving --plain-url http://127.0.0.1:30000 --dspark-url http://127.0.0.1:30001"""
CONCURRENCIES, QUICK_CONCURRENCIES = (1, 4, 16, 64), (1, 4)
ROUNDS, QUICK_ROUNDS = 4, 2
PARITY_TOKENS = 32
# Of the demo: its answers are short, and the servers' counts must be read before they are over.
DEMO_TOKENS, DEMO_LOG_INTERVAL = 32, 4
_WAIT_LINE_S = 20.0
HERE = ("localhost", "127.0.0.1", "::1")
ELSEWHERE = {"arch": "unknown", "platform": "unknown", "driver": "unknown"}


def add_parser(benchmarks: Any) -> None:
    """Add the benchmark to the parser's `benchmarks`."""
    parser = benchmarks.add_parser(
        "serving",
        help="a server with and without speculation: parity, throughput, latency",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers = parser.add_argument_group("servers")
    servers.add_argument("--model-path", help="the target; both servers are started from it")
    servers.add_argument("--draft-path", help="the draft of the server with speculation")
    servers.add_argument("--demo", action="store_true", help="the demo pair, on this machine's CPU")
    servers.add_argument("--plain-url", help="a running server without speculation, instead of --model-path")
    servers.add_argument("--dspark-url", help="a running server with speculation, instead of --draft-path")
    servers.add_argument(
        "--forced-acceptance",
        nargs="+",
        type=float,
        default=[],
        metavar="N",
        help="accepted lengths to force (1 or more)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency", nargs="+", type=int, metavar="N", help=f"requests at once (default: {_list(CONCURRENCIES)})"
    )
    load.add_argument("--rounds", type=int, help=f"requests for each one at once (default: {ROUNDS})")
    load.add_argument("--prompts", type=Path, help='JSONL file of real prompts: {"prompt": "..."} a line')
    load.add_argument(
        "--input-tokens", type=int, default=1024, help="of a random prompt, without --prompts (default: 1024)"
    )
    load.add_argument("--output-tokens", type=int, help="of every answer (default: 512)")
    load.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_ROUNDS} rounds at {_list(QUICK_CONCURRENCIES)} at once, 4 parity prompts",
    )
    load.add_argument("--seed", type=int, default=1, help="of the order of the requests (default: 1)")
    parity = parser.add_argument_group("parity")
    parity.add_argument(
        "--parity-prompts", type=int, help="greedy answers to compare first (default: 8, at most 8 of --prompts)"
    )
    parity.add_argument(
        "--tie",
        type=float,
        help="logprob difference up to which two tokens are equally likely (default: 0 in float32, else 0.25)",
    )
    parser.add_argument("--name", help="what to call the model in the rows (default: its folder and TP)")
    parser.add_argument("--device-name", help="of servers on another machine, whose device cannot be read here")
    parser.add_argument("--out", type=Path, help="folder for rows, picture and logs (default: out/bench)")
    parser.set_defaults(run=run, takes_rest=True)


def run(arguments: argparse.Namespace) -> int:
    """Run it; 0 when everything that was asked for was timed."""
    from sglang_dspark.bench import environment, this_machine
    from sglang_dspark.bench.rows import append
    from sglang_dspark.bench.serving import run as serving
    from sglang_dspark.bench.serving.client import SglangClient

    _check(arguments)
    # A supervisor's way to say Ctrl-C: the servers must not outlive this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if arguments.demo:
        # This process's own description of the machine follows it as well.
        os.environ.update(CPU_ENGINE)
    out = arguments.out or environment.OUT
    out.mkdir(parents=True, exist_ok=True)
    logs = Path(tempfile.mkdtemp(prefix="serving-", dir=out))
    facts = this_machine.run_facts()
    if arguments.device_name:
        facts = replace(facts, device={**ELSEWHERE, "name": arguments.device_name})
    workload = _workload(arguments, logs)
    quick = arguments.quick
    points = serving.points(
        arguments.concurrency or (QUICK_CONCURRENCIES if quick else CONCURRENCIES),
        arguments.rounds or (QUICK_ROUNDS if quick else ROUNDS),
        workload,
    )
    path = environment.results_path(out, facts)
    print(f"Rows go to {path}, logs to {logs}.", flush=True)
    rows = []
    with SglangClient(logs, on_wait=_progress("working")) as client:
        setting = serving.Setting(
            client=client,
            subjects=_subjects(arguments, logs),
            points=points,
            workload=workload,
            preset=arguments.name or _name(arguments),
            run=facts,
            parity_texts=workload.texts[: arguments.parity_prompts or (4 if quick else 8)],
            parity_tokens=min(PARITY_TOKENS, arguments.output_tokens or PARITY_TOKENS),
            tie=arguments.tie,
            seed=arguments.seed,
            say=partial(print, flush=True),
        )
        for row in serving.measure(setting):
            append(path, row)
            rows.append(row)
    return _finish(rows, path)


def _finish(rows: list[Any], path: Path) -> int:
    from sglang_dspark.bench import report
    from sglang_dspark.bench.serving import picture

    print(f"\n{report.markdown(rows)}\n\n{len(rows)} rows in {path}")
    drawing = path.with_name(f"{path.stem}-serving.png")
    try:
        picture.draw(rows, drawing)
    except RuntimeError as error:
        print(f"note: no picture: {error}")
    else:
        print(f"picture: {drawing}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together; every reason names what to give instead."""
    running = bool(arguments.plain_url or arguments.dspark_url)
    own = bool(arguments.model_path or arguments.draft_path)
    if running + own + arguments.demo != 1:
        raise ValueError(
            "asked for "
            + ("several kinds of servers" if running + own + arguments.demo else "no servers")
            + ": give one of --model-path with --draft-path, --plain-url with --dspark-url, or --demo"
        )
    if own and not (arguments.model_path and arguments.draft_path):
        raise ValueError("--model-path and --draft-path go together: the target with and without its draft is compared")
    if running and not (arguments.plain_url and arguments.dspark_url):
        raise ValueError(
            "--plain-url and --dspark-url go together: their greedy answers are compared before anything is timed"
        )
    if running and (arguments.rest or arguments.forced_acceptance):
        what = "--forced-acceptance" if arguments.forced_acceptance else " ".join(arguments.rest)
        raise ValueError(
            f"{what} is for servers that this command starts: what a running one does was decided at its start"
        )
    if running and not arguments.device_name:
        for url in (arguments.plain_url, arguments.dspark_url):
            if urlsplit(url).hostname not in HERE:
                raise ValueError(f"{url} is on another machine, and rows name the device: give its --device-name")
    if low := [length for length in arguments.forced_acceptance if length < 1]:
        raise ValueError(f"--forced-acceptance {low[0]:g}: every step yields one token at least; give 1 or more")
    for name in ("rounds", "output_tokens", "input_tokens", "parity_prompts"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: give 1 or more")
    if min(arguments.concurrency or [1]) < 1:
        raise ValueError(f"--concurrency {min(arguments.concurrency)}: give 1 or more")


def _workload(arguments: argparse.Namespace, folder: Path) -> Workload:
    from sglang_dspark.bench.serving import greedy_parity, workload

    if arguments.prompts:
        prompts = workload.read_prompts(arguments.prompts)
        return workload.from_prompts(prompts, arguments.prompts.name, arguments.output_tokens or 512, folder)
    if arguments.demo:
        from sglang_dspark.demo import code_prompts

        # As many as are asked for; the parity prompts are among them.
        most = max(arguments.concurrency or CONCURRENCIES) * (arguments.rounds or ROUNDS)
        prompts = code_prompts(max(most, 8))
        return workload.from_prompts(prompts, "demo prompts", arguments.output_tokens or DEMO_TOKENS, folder)
    print("note: random token ids; the accepted length says nothing of real text (give --prompts for that)")
    return workload.random_ids(arguments.input_tokens, arguments.output_tokens or 512, greedy_parity.TEXTS)


def _subjects(arguments: argparse.Namespace, logs: Path) -> list[Subject]:
    """The servers in the order in which they are timed: first the one that the others are held to."""
    from sglang_dspark.bench.serving.run import DSPARK, FORCED_VARIABLE, PLAIN, Subject, forced_name

    if arguments.plain_url:
        return [
            Subject(PLAIN, partial(_running, arguments.plain_url), speculative=False),
            Subject(DSPARK, partial(_running, arguments.dspark_url), speculative=True),
        ]
    plain, dspark, environment = _server_arguments(arguments)
    start = partial(_started, logs)
    subjects = [
        Subject(PLAIN, partial(start, PLAIN, plain, environment), speculative=False),
        Subject(DSPARK, partial(start, DSPARK, dspark, environment), speculative=True),
    ]
    for length in arguments.forced_acceptance:
        name = forced_name(length)
        forced = {**environment, FORCED_VARIABLE: f"{length:g}"}
        subjects.append(Subject(name, partial(start, name, dspark, forced), speculative=True, forced_length=length))
    return subjects


def _server_arguments(arguments: argparse.Namespace) -> tuple[list[str], list[str], dict[str, str]]:
    """Those without speculation, those with it, and the variables of both."""
    model, draft, environment = arguments.model_path, arguments.draft_path, {}
    own: list[str] = []
    if arguments.demo:
        from sglang_dspark.demo import ensure

        pair = ensure()
        model, draft, environment = str(pair.target), str(pair.draft), dict(CPU_ENGINE)
        own = ["--device", "cpu", "--dtype", "float32", "--max-total-tokens", "20000"]
        own += ["--decode-log-interval", str(DEMO_LOG_INTERVAL)]
    plain = ["--model-path", model, *own, *arguments.rest]
    return plain, [*plain, "--speculative-algorithm", "dspark", "--speculative-draft-model-path", draft], environment


def _running(url: str) -> AbstractContextManager[RunningServer]:
    from sglang_dspark.bench.serving.run import RunningServer

    return nullcontext(RunningServer(url.rstrip("/"), f"{url}, which was running already"))


@contextmanager
def _started(logs: Path, name: str, arguments: list[str], environment: Mapping[str, str]) -> Iterator[RunningServer]:
    from sglang_dspark.bench.serving.run import RunningServer

    log = logs / f"{name.replace(', ', '-').replace(' ', '-')}.log"
    server = Server(arguments, log, environment=environment, ready_seconds=3600, on_wait=_progress("starting"))
    print(f"\nServing, {name}:\n  {server.command}", flush=True)
    began = time.monotonic()
    with server:
        print(f"  ready after {time.monotonic() - began:.0f} s", flush=True)
        yield RunningServer(f"http://127.0.0.1:{server.port}", server.command)


def _progress(what: str) -> Callable[[float], None]:
    """Says how long something takes: in place on a terminal, otherwise a line now and then."""
    said = 0.0

    def show(seconds: float) -> None:
        nonlocal said
        if seconds < said:
            said = 0.0  # the next wait has begun
        if sys.stdout.isatty():
            print(f"\r    {what}, {seconds:.0f} s ", end="\r", flush=True)
        elif seconds - said >= _WAIT_LINE_S:
            said = seconds
            print(f"    {what}, {seconds:.0f} s", flush=True)

    return show


def _name(arguments: argparse.Namespace) -> str:
    if arguments.demo:
        return "demo pair"
    if arguments.plain_url:
        from sglang_dspark.bench.serving.run import server_info

        return Path(str(server_info(arguments.plain_url).get("model_path", "unknown model"))).name
    name, rest = Path(arguments.model_path).name, arguments.rest
    for flag in ("--tp", "--tp-size", "--tensor-parallel-size"):
        if flag in rest[:-1]:
            return f"{name}, TP {rest[rest.index(flag) + 1]}"
    return name


def _list(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))
