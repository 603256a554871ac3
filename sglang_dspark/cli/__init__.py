"""The one command, `sglang-dspark`; each subcommand stands in its own module beside this one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_dspark import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the exit status, 0 for success."""
    from sglang_dspark.cli import bench, convert, demo, doctor, eval, serve, train

    parser = argparse.ArgumentParser(prog="sglang-dspark", description="DSpark speculative decoding for MiniMax-M3.")
    parser.add_argument("--version", action="version", version=f"sglang-dspark {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    bench.add_parser(commands)
    convert.add_parser(commands)
    demo.add_parser(commands)
    doctor.add_parser(commands)
    eval.add_parser(commands)
    serve.add_parser(commands)
    train.add_parser(commands)
    parsed, rest = parser.parse_known_args(arguments)
    if rest and not getattr(parsed, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    parsed.rest = rest
    try:
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        print(f"sglang-dspark {parsed.command}: {error}", file=sys.stderr)
        return 1
