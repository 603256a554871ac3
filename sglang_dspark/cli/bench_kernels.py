"""`sglang-dspark bench kernels`: the context KV writer on this machine's GPU: parity first, then times.

Without a GPU nothing is timed: the CPU backends' parity runs, and what is known without a device is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(benchmarks: Any) -> None:
    """Add the benchmark to the parser's `benchmarks`."""
    parser = benchmarks.add_parser(
        "kernels",
        help="every backend of the context KV writer: parity, then times",
        description=__doc__,
        epilog="example: sglang-dspark bench kernels --quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer token counts and 30 repetitions; parity as always")
    parser.add_argument("--out", type=Path, help="folder of the rows (default: benchmarks/results of the checkout)")
    parser.add_argument("--budget-s", type=float, default=600, help="seconds for all of it; repetitions are trimmed")
    parser.add_argument("--repetitions", type=int, help="of each case (default: 200)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run it; 0 when all of ours was timed."""
    from sglang_dspark.bench import context_kv

    return context_kv.run(arguments)
