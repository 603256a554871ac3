"""`sglang-dspark convert`: a draft from one checkpoint layout to the other, or checked against its target.

AutoModel's layout carries copies of the target's embedding and LM head, the released one borrows them. Tensors are
copied byte for byte and never held in memory whole; every tensor and config key is accounted for. The new folder
appears when it is finished, or not at all.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints.config import Layout
from sglang_dspark.checkpoints.convert import DEFAULT_SHARD_BYTES, Plan, plan, write
from sglang_dspark.checkpoints.lint import Level, lint
from sglang_dspark.checkpoints.publish import require_free

_LAYOUTS = {layout.name.lower(): layout for layout in Layout}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_parser(commands: Any) -> None:
    """Add the subcommand to the parser's `commands`."""
    parser = commands.add_parser(
        "convert",
        help="convert a draft between AutoModel's and the released layout, or check one against its target",
        description=__doc__,
        epilog="examples:\n"
        "  sglang-dspark convert trained-draft served-draft --to released\n"
        "  sglang-dspark convert released-draft trainable-draft --to automodel --target MiniMax-M3\n"
        "  sglang-dspark convert --check draft --target MiniMax-M3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="?", type=Path, metavar="SRC", help="the draft, or a target with one inside")
    parser.add_argument("destination", nargs="?", type=Path, metavar="DST", help="a folder that does not exist yet")
    parser.add_argument("--to", choices=_LAYOUTS, help="the layout to write")
    parser.add_argument("--target", type=Path, help="the target's folder; --to automodel and --check need it")
    parser.add_argument("--dry-run", action="store_true", help="print the maps of tensors and config keys, and stop")
    parser.add_argument(
        "--check", type=Path, metavar="DRAFT", help="print what fits and what does not; convert nothing"
    )
    parser.add_argument(
        "--max-shard-size",
        type=size_bytes,
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="start another file above this, like 500MB or 5GB (default: 5GB)",
    )
    parser.set_defaults(run=lambda arguments: run(arguments, parser))


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Convert or check; 0 when it was done and nothing is wrong."""
    given = [arguments.source, arguments.destination, arguments.to]
    if arguments.check is not None:
        if any(value is not None for value in given) or arguments.dry_run or arguments.target is None:
            parser.error("--check takes a draft and --target, and nothing else")
        return check(arguments.check, arguments.target)
    if arguments.source is None or arguments.to is None or (arguments.destination is None and not arguments.dry_run):
        parser.error("asked for SRC, DST and --to, or for --check DRAFT --target TARGET")
    if arguments.destination is not None:
        require_free(arguments.destination)
    made = plan(arguments.source, _LAYOUTS[arguments.to], arguments.target)
    if arguments.dry_run:
        print("\n".join(describe(made)))
        return 0
    write(made, arguments.destination, arguments.max_shard_size, _Progress(made.size_bytes))
    lost = [move for move in made.tensors if not move.destination]
    print(f"Wrote {len(made.placements)} tensors ({made.size_bytes:,} bytes) to {arguments.destination}.")
    for move in lost:
        print(f"Left out {move.source}: {move.note}.")
    for name, reason in made.left_out:
        print(f"Left out {name}: {reason}.")
    return 0


def check(draft: Path, target: Path) -> int:
    """Print every finding; 1 when one of them is a problem."""
    findings = lint(draft, target)
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{finding.level.value:<8} {finding.subject:<{width}}  {finding.text}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    print(f"{problems} problem(s), {warnings} warning(s)")
    return 1 if problems else 0


def describe(made: Plan) -> list[str]:
    """The maps of a plan, a line each; keys and tensors that keep their names come last."""
    lines = [f"tensors ({len(made.placements)}, {made.size_bytes:,} bytes):"]
    lines += _map((move.source, move.destination, move.note) for move in made.tensors)
    lines += ["config.json:"]
    lines += _map((move.source, move.destination, move.reason) for move in made.keys)
    lines += ["files:"]
    lines += [f"  {path.name}" for path in made.copied]
    lines += [f"  {name} -> left out ({reason})" for name, reason in made.left_out]
    return lines


def size_bytes(text: str) -> int:
    """A size like 500MB, in bytes.

    Raises:
        ArgumentTypeError: it is none.
    """
    found = re.fullmatch(r"(\d+)\s*([KMG]I?B)?", text.strip().upper())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"asked for a size like 500MB or 5GB, found {text!r}")
    return int(found[1]) * _UNITS[found[2] or ""]


def _map(moves: Any) -> list[str]:
    kept, changed = [], []
    for source, destination, note in moves:
        if source == destination and not note:
            kept.append(f"  {source}")
            continue
        reason = f" ({note})" if note else ""
        changed.append(f"  {source or 'added:'} {'-> ' if source else ''}{destination or 'left out'}{reason}")
    return changed + kept


class _Progress:
    """A line that counts the bytes written, on a terminal alone."""

    def __init__(self, total_bytes: int) -> None:
        self._total, self._done = total_bytes, 0
        self._shown = sys.stderr.isatty()

    def __call__(self, count: int) -> None:
        self._done += count
        if self._shown:
            end = "\n" if self._done >= self._total else ""
            print(f"\r  {self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)
