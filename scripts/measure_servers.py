"""Measures what metrics cost and what stopping a losing draft saves, on this machine's CPU: servers side by side.

    python scripts/measure_servers.py metrics|stopping [--rounds 6]

`metrics`: the demo pair, with --enable-metrics against without. SGLang's own metrics are part of it; this plugin counts
in both and exports in one. `stopping`: a draft of which nearly nothing is accepted, with SGLANG_DSPARK_DRAFTING=auto
and without a draft, against drafting on, in compact and in static verify.

The servers run at the same time and are asked in turn, so that whatever else the machine does falls on all of them.
Printed are ratios of tokens a second: median, smallest and largest. A large model on an accelerator has others.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sglang_dspark.cli.server import Server  # noqa: E402
from sglang_dspark.demo import DemoPair, DemoSpec, build, ensure, prompts  # noqa: E402
from tests.e2e.serving import serve  # noqa: E402

AT_ONCE, NEW_TOKENS = 16, 128


@dataclass(frozen=True)
class Arm:
    """One server of a comparison."""

    name: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    drafts: bool = True


def seconds(server: Server, texts: list[str]) -> float:
    """How long all texts take. They come in one request: batches of arrivals would differ more than servers."""
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    started = time.monotonic()
    server.post("/generate", {"text": texts, "sampling_params": sampling})
    return time.monotonic() - started


def compare(title: str, pair: DemoPair, arms: list[Arm], rounds: int) -> None:
    """Ask all servers in turn, `rounds` times; print each arm's rate against the first's."""
    texts = prompts(AT_ONCE)
    # Every arm twice, started in one order and then in the other: of two alike, the later was seen 1.1 to 1.2 times as
    # fast as the earlier.
    started = [*arms, *reversed(arms)]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for number, arm in enumerate(started):
            flags = ("--disable-radix-cache", *arm.flags)
            server = serve(pair, logs / f"{number}.log", *flags, speculative=arm.drafts, environment=arm.environment)
            servers.append(stack.enter_context(server))
        for server in servers:
            seconds(server, texts)
        totals: dict[str, list[float]] = {arm.name: [0.0] * rounds for arm in arms}
        pairs = list(zip(started, servers, strict=True))
        for number in range(rounds):
            # Who is first changes, or an effect of the order would look like one of the arms.
            for arm, server in pairs[number % len(pairs) :] + pairs[: number % len(pairs)]:
                totals[arm.name][number] += seconds(server, texts)
            print(f"... {title}: {number + 1} of {rounds}", flush=True)
    base = totals[arms[0].name]
    for arm in arms[1:]:
        ratios = [theirs / ours for ours, theirs in zip(totals[arm.name], base, strict=True)]
        print(
            f"{title}: {arm.name} / {arms[0].name}: median {statistics.median(ratios):.3f}, "
            f"{min(ratios):.3f} to {max(ratios):.3f} over {rounds} rounds"
        )


def metrics(rounds: int, _: Path) -> None:
    compare("metrics", ensure(), [Arm("without"), Arm("with", ("--enable-metrics",))], rounds)


def stopping(rounds: int, folder: Path) -> None:
    losing = build(folder / "losing", spec=DemoSpec.text(wrong_draft=True))
    for mode in ("compact", "static"):
        environment = {"SGLANG_RAGGED_VERIFY_MODE": mode}
        auto = {**environment, "SGLANG_DSPARK_DRAFTING": "auto"}
        arms = [
            Arm("always", environment=environment),
            Arm("auto", environment=auto),
            Arm("without a draft", drafts=False),
        ]
        compare(f"stopping, {mode}", losing, arms, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("metrics", "stopping"))
    parser.add_argument("--rounds", type=int, default=6, help="how often each is asked (default: 6)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: there is nothing to compare; take 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        {"metrics": metrics, "stopping": stopping}[arguments.what](arguments.rounds, Path(folder))


if __name__ == "__main__":
    main()
