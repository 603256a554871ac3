"""`sglang-dspark eval calibrate`: a temperature for each position of the confidence head, and what it mends.

Takes confidences with their outcomes from the plain PyTorch reference (--target, --draft and prompts), or as a server
collected them (--shards); fits temperatures on a random half with SGLang's own fitter; and reports the calibration
error of the other half, before and after. The file that --temperatures names is what SGLang's
--speculative-dspark-confidence-sts-path reads.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sglang_dspark.cli import eval_judges as judges
from sglang_dspark.cli.eval_acceptance import write_results


def add_parser(parts: Any) -> None:
    """Add the part to the parser's `parts`."""
    parser = parts.add_parser(
        "calibrate",
        help="fit the confidence head's temperatures, and report its calibration error before and after",
        description=__doc__,
        epilog="examples:\n"
        '  sglang-dspark eval calibrate --target "$(sglang-dspark demo --path)/target" '
        '--draft "$(sglang-dspark demo --path)/draft" --raw --new-tokens 128 demo-code demo-files '
        "--temperatures sts.json\n"
        "  SGLANG_DSPARK_STS_COLLECT_PATH=collected/m3 sglang-dspark serve ...      # let it answer at temperature 0\n"
        "  sglang-dspark eval calibrate --shards 'collected/m3.*.pt' --temperatures sts.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    judges.add_reference(parser)
    parser.add_argument("--shards", metavar="GLOB", help="files that a server collected, instead of the reference")
    judges.add_prompts(parser, "*")
    parser.add_argument("--temperatures", type=Path, required=True, metavar="FILE", help="the file to write for SGLang")
    parser.add_argument("--rounds", type=Path, metavar="FILE", help="also write the rounds, for --shards another time")
    parser.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json, STEM.md and STEM.png")
    parser.add_argument("--no-picture", action="store_true", help="leave out STEM.png, which needs matplotlib")
    parser.set_defaults(run=lambda arguments: run(arguments, parser))


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Fit, report and write; 0."""
    judges.check_pair(arguments, parser, ["shards"])
    if bool(arguments.shards) == bool(arguments.sets):
        parser.error("prompts go with the reference, and not with --shards, whose prompts a server has answered")
    from sglang_dspark.evaluate import calibrating, picture, report
    from sglang_dspark.evaluate.fitting import write_calibration
    from sglang_dspark.evaluate.samples import join

    draws = arguments.out is not None and not arguments.no_picture
    if draws:
        picture.load_pyplot()
    source, settings, data, parts = _samples(arguments)
    if arguments.rounds is not None:
        arguments.rounds.parent.mkdir(parents=True, exist_ok=True)
        join(parts).save(arguments.rounds)
    fit, held_out = calibrating.halves(parts, arguments.seed)
    judges.tell(f"fitting temperatures on {len(fit)} rounds with SGLang's fitter")
    found = calibrating.calibrate(fit, held_out)
    from sglang_dspark.bench.this_machine import run_facts

    data = f"a random half of {data}"
    table = calibrating.calibration_table(run_facts(), source, settings, data, found)
    text = report.calibration_markdown(table)
    print(text)
    write_calibration(arguments.temperatures, found.positions, data, found.fitted_on)
    judges.tell(f"wrote {arguments.temperatures}; serve with --speculative-dspark-confidence-sts-path")
    if arguments.out is not None:
        write_results(arguments.out, table, text, picture.draw_calibration if draws else None)
    return 0


def _samples(arguments: argparse.Namespace) -> tuple[dict[str, Any], Any, str, list[Any]]:
    """Where the rounds come from, how they were asked, in words, and the rounds in parts."""
    from sglang_dspark.evaluate.calibrating import cut
    from sglang_dspark.evaluate.samples import read_shards

    if arguments.shards:
        return {"kind": "server's collected files"}, None, arguments.shards, cut(read_shards(arguments.shards))
    sets = judges.read_sets(arguments)
    judge, progress = judges.reference_of(arguments), judges.Progress()
    parts = []
    for one in sets:
        for number, prompt in enumerate(one.prompts, start=1):
            parts.append(judge.samples(prompt.text))
            progress(one.name, number, len(one.prompts))
    return judge.describe(), judge.settings, ", ".join(one.name for one in sets), parts
