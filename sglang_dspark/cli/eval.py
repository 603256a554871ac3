"""`sglang-dspark eval`: how well a draft does, and the two files that its confidence scheduling reads.

acceptance  accepted length by data set and position, of a running server or of the plain PyTorch reference
calibrate   temperatures for the confidence head, and its calibration error before and after
steps       what a verify step costs, from a running server

Each stands in a module of its own beside this one.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_dspark.cli import eval_acceptance, eval_calibrate, eval_steps


def add_parser(commands: Any) -> None:
    """Add the subcommand, and its own subcommands, to the parser's `commands`."""
    parser = commands.add_parser(
        "eval",
        help="measure a draft's acceptance, calibrate its confidences, profile the server's steps",
        description=__doc__,
        epilog="example: sglang-dspark eval acceptance --url http://127.0.0.1:30000 gsm8k=gsm8k.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    eval_acceptance.add_parser(parts)
    eval_calibrate.add_parser(parts)
    eval_steps.add_parser(parts)
