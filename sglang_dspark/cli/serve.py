"""`sglang-dspark serve`: SGLang's own server with a DSpark draft, and what this machine wants beside your arguments.

Every argument that is not listed here is launch_server's, and reaches it as you gave it. What is added is printed with
its reason, and then the whole command; nothing of yours is overridden. What is known to fail is said before the server
starts. The server takes this process's place, so signals and exit status are its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from sglang_dspark.checkpoints.lint import Level


def add_parser(commands: Any) -> None:
    """Add the subcommand to the parser's `commands`."""
    parser = commands.add_parser(
        "serve",
        help="start SGLang's server with a draft and the arguments that this machine wants",
        description=__doc__,
        usage="sglang-dspark serve [-h] [--dry-run] --model-path TARGET [launch_server's own arguments]",
        epilog="examples:\n"
        "  sglang-dspark serve --model-path MiniMax-M3 --speculative-draft-model-path draft\n"
        "  sglang-dspark serve --model-path MiniMax-M3 --speculative-draft-model-path draft --tp 4 --port 30001\n"
        "  sglang-dspark serve --dry-run --model-path MiniMax-M3.1-Flash > start.sh\n"
        "launch_server's own arguments: python -m sglang.launch_server --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--dry-run", "--print-only", action="store_true", help="print the command on standard output, and stop"
    )
    parser.set_defaults(run=lambda arguments: run(arguments), takes_rest=True)


def run(arguments: argparse.Namespace) -> int:
    """Become the server; returns only where none is started: 0 after --dry-run, 1 when something speaks against it."""
    command = prepare(arguments.rest)
    if command is None:
        return 1
    if arguments.dry_run:
        print(command.typed())
        return 0
    _tell(f"\nStarting:\n  {command.typed()}\n")
    sys.stdout.flush()
    os.execvpe(command.words[0], command.words, dict(command.environment))


def prepare(rest: Sequence[str]) -> Any:
    """The command with its recommendations, told on standard error; None when something speaks against it."""
    _tell("... looking at this machine, SGLang and the checkpoints")
    from sglang_dspark.doctor.findings import Case
    from sglang_dspark.launch import checks, machine, recommendations
    from sglang_dspark.launch.arguments import DEVICE, Given
    from sglang_dspark.launch.command import compose

    given = Given(rest)
    draft = checks.draft_of(given)
    environment = dict(os.environ)
    if given.value(DEVICE) == "cpu":
        # What the platform is, here and in the server, hangs on this variable.
        os.environ.setdefault(recommendations.CPU_ENGINE, "1")
    here = machine.current()
    advice = recommendations.recommend(here, given, environment, checks.draft_fits(draft))
    command = compose(given, advice, environment)
    _tell(f"{here.describe()}\n{_listed(advice)}")
    case = Case(command.environment, progress=lambda what: _tell(f"... {what}"))
    found = [finding for finding in checks.check(case, given, draft, here) if finding.level is not Level.OK]
    for finding in found:
        _tell(f"  {finding.level.value:<8} {finding.subject}  {finding.text}")
    if any(finding.level is Level.PROBLEM for finding in found):
        _tell("Not started. What would have been:\n  " + command.typed())
        return None
    return command


def _listed(advice: Sequence[Any]) -> str:
    width = max(len(item.written) for item in advice)
    lines, last = [], None
    for item in sorted(advice, key=lambda item: item.standing.name):
        if item.standing is not last:
            lines.append(f"{item.standing.value}:")
            last = item.standing
        lines.append(f"  {item.written:<{width}}  {item.reason}")
    return "\n".join(lines)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
