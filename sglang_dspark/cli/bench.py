"""`sglang-dspark bench`: how fast the kernels and the server are, against the alternatives and the physical limit.

Each benchmark stands in a module of its own beside this one. All of them write the same JSON rows
(`sglang_dspark/bench/rows.py`).
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_dspark.cli import bench_kernels, bench_model, bench_report, bench_serving


def add_parser(commands: Any) -> None:
    """Add the subcommand, and its own subcommands, to the parser's `commands`."""
    parser = commands.add_parser(
        "bench",
        help="time the kernels on this device, against SGLang's own and a copy of the same bytes",
        description=__doc__,
        epilog="example: sglang-dspark bench kernels --quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    bench_kernels.add_parser(benchmarks)
    bench_serving.add_parser(benchmarks)
    bench_model.add_parser(benchmarks)
    bench_report.add_parser(benchmarks)
