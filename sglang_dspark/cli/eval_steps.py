"""`sglang-dspark eval steps`: what a verify step costs, for SGLang's --speculative-dspark-sps-table-path.

Runs SGLang's own profiler against a server that was started for it, with these in its environment:
  SGLANG_DSPARK_ENABLE_SPS_RECORD=1 SGLANG_SIMULATE_ACC_LEN=1.0 SGLANG_RAGGED_VERIFY_MODE=static
Any device will do. On a CPU it shows that the path works, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sglang_dspark.cli.eval_judges import tell


def add_parser(parts: Any) -> None:
    """Add the part to the parser's `parts`."""
    parser = parts.add_parser(
        "steps",
        help="profile the cost of the server's verify steps",
        description=__doc__,
        epilog="examples:\n"
        "  sglang-dspark eval steps --url http://127.0.0.1:30000 --out steps.json\n"
        "  sglang-dspark eval steps --url http://127.0.0.1:30000 --out steps.json --quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", required=True, help="the running server: http://127.0.0.1:30000, say")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the table; raw records go beside it")
    parser.add_argument("--quick", action="store_true", help="two batch sizes and few steps, to see that it works")
    parser.add_argument(
        "--batch-size", type=int, nargs="+", default=[], metavar="N",
        help="requests at a time (default: a growing series up to 256 or the server's limit)",
    )  # fmt: skip
    parser.add_argument(
        "--fractions", type=float, nargs="+", default=[], metavar="F",
        help="also vary the share of proposals verified, for a table over requests and tokens; the server must run "
        "with SGLANG_RAGGED_VERIFY_MODE=compact then",
    )  # fmt: skip
    parser.add_argument("--steady-steps", type=int, default=32, help="at each size, at least (default: %(default)s)")
    parser.add_argument(
        "--steady-seconds", type=float, default=10.0, help="at each size, at least (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=1, help="of the series (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Profile and print the table; 0."""
    from sglang_dspark.evaluate.steps import QUICK, StepRun, profile

    chosen = QUICK if arguments.quick else StepRun(
        batch_sizes=arguments.batch_size,
        fractions=arguments.fractions,
        steady_steps=arguments.steady_steps,
        steady_seconds=arguments.steady_seconds,
        repeats=arguments.repeats,
    )  # fmt: skip
    tell(f"profiling {arguments.url} with SGLang's profiler")
    table = profile(arguments.url.rstrip("/"), arguments.out, chosen, _Progress())
    print(table_text(table))
    tell(f"wrote {arguments.out}; serve with --speculative-dspark-sps-table-path {arguments.out}")
    return 0


class _Progress:
    """A line on standard error for every round of load that is done, and one now and then in a long one."""

    def __init__(self) -> None:
        self._rounds, self._told = -1, 0.0

    def __call__(self, rounds: int, seconds: float) -> None:
        if rounds != self._rounds or seconds - self._told > 30:
            self._rounds, self._told = rounds, seconds
            tell(f"{rounds} rounds of load done, {seconds:.0f} s")


def table_text(table: dict[str, Any]) -> str:
    """The table as Markdown."""
    if "bias_seconds" in table:
        rows = [("requests", table["bs_probes"], table["alpha_seconds"])]
        rows.append(("tokens", table["m_probes"], table["theta_seconds"]))
        lines = [f"A step takes {1e3 * table['bias_seconds']:.2f} ms, and for", "", "| | | more ms |", "|---|--:|--:|"]
        lines += [
            f"| {name} | {n} | {1e3 * s:.2f} |"
            for name, probes, seconds in rows
            for n, s in zip(probes, seconds, strict=True)
        ]
        return "\n".join(lines)
    pairs = zip(table["sample_batch_tokens"], table["sample_steps_per_sec"], strict=True)
    return "\n".join(["| tokens a step | steps a second |", "|--:|--:|", *(f"| {n} | {s:.2f} |" for n, s in pairs)])
