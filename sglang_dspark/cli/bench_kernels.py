"""`sglang-dspark bench kernels`: every backend of every op on this device, against SGLang's own path and a copy as big.

Parity first, then times: graph replay and eager, cold and warm cache, p20, p50 and p80, bytes, and the share of the
measured copy bandwidth. Rows go to a file, and `sglang-dspark bench report` shows them again. Without a GPU it says so,
and gives what can be had without one: floor times, compiled code, emulated counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """Add the benchmark to the parser's `benchmarks`."""
    parser = benchmarks.add_parser(
        "kernels",
        help="time every backend of every op, after a check that it does the right thing",
        description=__doc__,
        epilog="examples:\n"
        "  sglang-dspark bench kernels --quick\n"
        "  sglang-dspark bench kernels --ops context_kv --backends hip triton --presets m3-tp4 --tokens 8 48",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer presets, token counts and repetitions; same parity")
    parser.add_argument("--ops", nargs="+", default=(), metavar="OP", help="these ops (default: all)")
    parser.add_argument(
        "--backends", nargs="+", default=(), metavar="NAME", help="these backends (default: the platform's)"
    )
    parser.add_argument(
        "--presets", nargs="+", default=(), metavar="NAME", help="these shapes, such as m3-tp8 (default: all)"
    )
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=(), metavar="T", help="these counts of tokens (default: 1 to 16384)"
    )
    parser.add_argument("--out", type=Path, help="folder of the rows (default: out/bench)")
    parser.add_argument(
        "--budget-s",
        type=float,
        metavar="S",
        help="seconds for all of it, to which repetitions are trimmed (default: 600; on a CPU 60, for the times)",
    )
    parser.add_argument(
        "--repetitions", type=int, metavar="N", help="of each case (default: 200, quick 30, on a CPU 10)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run it; 0 when all of ours was timed, or on a CPU checked."""
    from sglang_dspark.bench import environment
    from sglang_dspark.bench.kernels import command

    return command.run(
        command.Options(
            quick=arguments.quick,
            ops=arguments.ops,
            backends=arguments.backends,
            presets=arguments.presets,
            tokens=arguments.tokens,
            out=arguments.out or environment.OUT,
            budget_s=arguments.budget_s,
            repetitions=arguments.repetitions,
        )
    )
