"""`sglang-dspark eval acceptance`: how many proposals the target keeps, by data set and position.

Asks every prompt of every data set, of a running server (--url) or of the plain PyTorch reference (--target,
--draft), and counts what each verify round kept. Prints Markdown; with --out also writes STEM.json, STEM.md and
STEM.png. Where the paper or others published accepted lengths for the same target, they stand beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sglang_dspark.cli import eval_judges as judges


def add_parser(parts: Any) -> None:
    """Add the part to the parser's `parts`."""
    parser = parts.add_parser(
        "acceptance",
        help="accepted length by data set and position",
        description=__doc__,
        epilog="examples:\n"
        "  sglang-dspark eval acceptance --url http://127.0.0.1:30000 gsm8k=gsm8k.jsonl humaneval=HumanEval.jsonl "
        "--out results/m3\n"
        '  sglang-dspark eval acceptance --target "$(sglang-dspark demo --path)/target" '
        '--draft "$(sglang-dspark demo --path)/draft" --raw --limit 8 --new-tokens 64 demo-code',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="the running server: http://127.0.0.1:30000, say")
    judges.add_reference(parser)
    judges.add_prompts(parser, "+")
    parser.add_argument("--at-once", type=int, default=16, help="prompts under way on a server (default: %(default)s)")
    parser.add_argument("--target-name", help="the target's name, for what was published of it (default: its path's)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json, STEM.md and STEM.png")
    parser.add_argument("--no-picture", action="store_true", help="leave out STEM.png, which needs matplotlib")
    parser.set_defaults(run=lambda arguments: run(arguments, parser))


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure, print and write; 0."""
    judges.check_pair(arguments, parser, ["url"])
    from sglang_dspark.evaluate import acceptance, picture, published, report, results

    draws = arguments.out is not None and not arguments.no_picture
    if draws:
        picture.load_pyplot()  # better said now than after an hour of answers
    sets = judges.read_sets(arguments)
    judge, at_once = _judge(arguments)
    measured = acceptance.measure(judge, sets, at_once=at_once, progress=judges.Progress())
    described = judge.describe()
    row = published.for_target(arguments.target_name or str(described["model_path"]))
    from sglang_dspark.bench.this_machine import run_facts

    table = results.acceptance_table(run_facts(), described, judge.settings, measured, row)
    text = report.acceptance_markdown(table)
    print(text)
    if arguments.out is not None:
        write_results(arguments.out, table, text, picture.draw_acceptance if draws else None)
    return 0


def _judge(arguments: argparse.Namespace) -> tuple[Any, int]:
    if arguments.url is None:
        return judges.reference_of(arguments), 1
    if arguments.at_once < 1:
        raise ValueError(f"asked for {arguments.at_once} prompts at once; take 1 or more")
    from sglang_dspark.evaluate.server import ServerJudge

    return ServerJudge(arguments.url, judges.settings_of(arguments)), arguments.at_once


def write_results(stem: Path, table: Any, text: str, draw: Any) -> None:
    """Write the JSON, the Markdown and, with a function that draws, the picture; say where they are."""
    from sglang_dspark.evaluate import results

    # Not with_suffix: a stem may have a point in its name.
    files = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "md", "png")]
    results.write(files[0], table)
    picture = f"\n![What the tables say]({files[2].name})\n" if draw else ""
    files[1].write_text(text + picture, encoding="utf-8")
    if draw:
        draw(table, files[2])
    judges.tell("wrote " + ", ".join(str(file) for file in (files if draw else files[:2])))
