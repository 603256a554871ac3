"""`sglang-dspark doctor`: is everything in place to serve MiniMax-M3 with a DSpark draft here?

Run it in the environment, and with the variables, that the server will have. One line a finding: ok, warning (works,
perhaps not as wanted) or problem, each with what to do. The exit status is 1 when there is a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_dspark import __version__
from sglang_dspark.checkpoints.lint import Level


def add_parser(commands: Any) -> None:
    """Add the subcommand to the parser's `commands`."""
    parser = commands.add_parser(
        "doctor",
        help="check SGLang, the plugin, the machine, the kernels and a pair of checkpoints",
        description=__doc__,
        epilog="examples:\n"
        "  sglang-dspark doctor\n"
        "  sglang-dspark doctor --model-path MiniMax-M3 --draft-path draft\n"
        "  sglang-dspark doctor --json > report.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--quick", action="store_true", help="leave out the fresh process that loads SGLang")
    parser.add_argument("--model-path", type=Path, metavar="TARGET", help="also check this target, with --draft-path")
    parser.add_argument("--draft-path", type=Path, metavar="DRAFT", help="also check this draft, with --model-path")
    parser.set_defaults(run=lambda arguments: run(arguments, parser))


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print every finding; 1 when one of them is a problem."""
    if (arguments.model_path is None) != (arguments.draft_path is None):
        parser.error("--model-path and --draft-path go together: the check holds one against the other")
    from sglang_dspark.doctor import Case, examine
    from sglang_dspark.doctor.findings import count

    case = Case(target=arguments.model_path, draft=arguments.draft_path, quick=arguments.quick, progress=_show_progress)
    groups, report = [], sys.stdout
    # Libraries that the checks import may print; standard output holds the report alone.
    with contextlib.redirect_stdout(sys.stderr):
        for group in examine(case):
            groups.append(group)
            if not arguments.json:
                print(_text(group), file=report, flush=True)
    problems, warnings = count(groups, Level.PROBLEM), count(groups, Level.WARNING)
    if arguments.json:
        print(json.dumps(_report(groups, problems, warnings), indent=2))
    else:
        print(f"{problems} problem(s), {warnings} warning(s)")
    return 1 if problems else 0


def _text(group: Any) -> str:
    width = max(len(finding.subject) for finding in group.findings)
    lines = [f"  {f.level.value:<8} {f.subject:<{width}}  {f.text}" for f in group.findings]
    return "\n".join([group.title, *lines])


def _report(groups: Sequence[Any], problems: int, warnings: int) -> dict[str, Any]:
    keys = ("subject", "found", "asked", "remedy")
    findings = [
        {"group": group.title, "level": f.level.value, **{key: getattr(f, key) for key in keys}}
        for group in groups
        for f in group.findings
    ]
    return {"sglang_dspark": __version__, "problems": problems, "warnings": warnings, "findings": findings}


def _show_progress(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)
