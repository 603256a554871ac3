"""`sglang-dspark bench report`: Markdown tables and pictures from benchmark rows alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  sglang-dspark bench report
  sglang-dspark bench report out/bench/*.jsonl --out docs"""


def add_parser(benchmarks: Any) -> None:
    """Add the command to the parser's `benchmarks`."""
    parser = benchmarks.add_parser(
        "report",
        help="tables and pictures from rows alone",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="row files (default: every one in out/bench, and in a checkout's benchmarks/results)",
    )
    parser.add_argument(
        "--out", type=Path, help="write bench-results.md and its pictures there (default: print the tables)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print or write; 1 when there is nothing to report."""
    from sglang_dspark.bench import environment, report, rows

    folders = (environment.OUT, environment.RESULTS)
    files = arguments.files or sorted(path for folder in folders for path in folder.glob("*.jsonl"))
    found = rows.read(files)
    if not found:
        where = ", ".join(map(str, arguments.files or folders))
        raise ValueError(
            f"no rows in {where}: run `sglang-dspark bench kernels`, `bench serving` or `bench model --out`, or name "
            "files"
        )
    if arguments.out is None:
        print(report.markdown(found))
        return 0
    for path in report.write(found, arguments.out):
        print(path)
    return 0
