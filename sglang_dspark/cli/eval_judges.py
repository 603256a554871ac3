"""What `eval acceptance` and `eval calibrate` share: the arguments that say who is asked what, and progress."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.prompts import PromptSet, read_set

# Seconds between two lines of progress where each is a line of its own.
_EVERY = 10.0


def add_reference(parser: Any) -> None:
    """Add the pair of checkpoints for the reference."""
    parser.add_argument("--target", type=Path, metavar="FOLDER", help="target checkpoint, with --draft")
    parser.add_argument("--draft", type=Path, metavar="FOLDER", help="draft checkpoint, with --target")


def add_prompts(parser: argparse.ArgumentParser, nargs: str) -> None:
    """Add the data sets and how they are asked."""
    parser.add_argument(
        "sets",
        nargs=nargs,
        metavar="NAME=FILE",
        help="JSON lines, in the formats of GSM8K, MATH-500, AIME25, MBPP, HumanEval, LiveCodeBench, MT-Bench, Alpaca "
        "and Arena-Hard, or with a prompt, text, turns or messages; NAME:FORMAT=FILE names the format instead of "
        "having it recognised; demo-code and demo-files need no file",
    )
    asking = parser.add_argument_group("asking")
    asking.add_argument("--limit", type=int, help="prompts of each data set, drawn at random (default: all)")
    asking.add_argument("--new-tokens", type=int, default=512, help="of an answer, at most (default: %(default)s)")
    asking.add_argument(
        "--temperature", type=float, default=0.0, help="0 is greedy, the paper has 1 (default: %(default)s)"
    )
    asking.add_argument("--raw", action="store_true", help="ask the prompts as they are, without a chat template")
    asking.add_argument(
        "--template", type=_json_object, default={}, metavar="JSON",
        help='further arguments of the chat template: \'{"enable_thinking": false}\', say',
    )  # fmt: skip
    asking.add_argument("--ignore-end", action="store_true", help="go on behind the end token, to --new-tokens")
    asking.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """How prompts are asked, from the arguments."""
    return Settings(
        max_new_tokens=arguments.new_tokens,
        temperature=arguments.temperature,
        chat=not arguments.raw,
        template=arguments.template,
        ignore_end=arguments.ignore_end,
        seed=arguments.seed,
    )


def read_sets(arguments: argparse.Namespace) -> list[PromptSet]:
    """The prompts of all data sets.

    Raises:
        PromptError: a file or a line cannot be used.
        ValueError: a limit below 1, or two data sets of one name.
    """
    if arguments.limit is not None and arguments.limit < 1 or arguments.new_tokens < 1:
        raise ValueError(
            f"asked for {arguments.limit} prompts and {arguments.new_tokens} new tokens; take 1 or more of each"
        )
    found = [_read_one(argument, arguments) for argument in arguments.sets]
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"asked for two data sets of one name: {', '.join(twice)}; call one otherwise")
    return found


def _read_one(argument: str, arguments: argparse.Namespace) -> PromptSet:
    from sglang_dspark.evaluate import demo_prompts

    if argument not in demo_prompts.NAMES:
        return read_set(argument, arguments.limit, arguments.seed)
    whole = demo_prompts.demo_set(argument)
    return PromptSet(whole.name, whole.file, whole.format, whole.prompts[: arguments.limit])


def reference_of(arguments: argparse.Namespace) -> Any:
    """The reference of --target and --draft.

    Raises:
        ValueError: a checkpoint cannot be loaded.
    """
    from sglang_dspark.evaluate.oracle import OracleJudge

    tell(f"loading {arguments.target} and {arguments.draft} into the reference")
    return OracleJudge(arguments.target, arguments.draft, settings_of(arguments))


def tell(text: str) -> None:
    """Say on standard error what is going on."""
    print(f"... {text}", file=sys.stderr, flush=True)


class Progress:
    """Answered prompts on standard error: one line that changes on a terminal, and lines now and then elsewhere."""

    def __init__(self) -> None:
        self._shown, self._started = 0.0, time.monotonic()

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show that so many of a data set's prompts are answered."""
        now, whole = time.monotonic(), done == total
        live = sys.stderr.isatty()
        if not whole and now - self._shown < (0.2 if live else _EVERY):
            return
        self._shown = now
        text = f"... {name}: {done} of {total} prompts, {now - self._started:.0f} s"
        print(f"\r{text} " if live else text, file=sys.stderr, end="\n" if whole or not live else "", flush=True)


def check_pair(arguments: argparse.Namespace, parser: argparse.ArgumentParser, others: Sequence[str]) -> None:
    """End with a usage error unless there is exactly one source: the reference's pair, or one of `others`."""
    pair = [arguments.target, arguments.draft]
    given = [name for name in others if getattr(arguments, name) is not None]
    if any(pair) and not all(pair):
        parser.error("--target and --draft go together: the reference needs both checkpoints")
    if len(given) + bool(all(pair)) != 1:
        options = " or ".join([*(f"--{name}" for name in others), "--target with --draft"])
        parser.error(f"say who is asked: {options}")


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"asked for a JSON object, found {text!r}")
    return found
