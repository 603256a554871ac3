r"""Prompts from JSON lines, in the formats of the nine data sets of the DSpark paper (section 4.1), and plain ones.

A format is recognised by the fields of a line, not by the data set's name, since one data set is published in several:

| format | a line's fields | data sets |
|---|---|---|
| turns | turns: strings, or objects with a content | MT-Bench, Arena-Hard 0.1, every file of DeepSpec's eval_datasets |
| messages | messages: role and content, as in the OpenAI API | LiveCodeBench in chat form, own prompts |
| contest | question_content, starter_code | LiveCodeBench |
| problem | problem | MATH-500, AIME25 |
| question | question | GSM8K, AIME25 in some editions |
| instruction | instruction, input | Alpaca |
| function | prompt, entry_point | HumanEval |
| prompt | prompt: a string, or turns | MBPP sanitized, Arena-Hard v2, MT-Bench on Hugging Face, own prompts |
| text | text | MBPP full, own prompts |

Of several turns only the first is asked, as DeepSpec's own evaluation does. Lines that name a bare task get a sentence
that asks for it; that wording is ours. For the paper's wording take DeepSpec's files, whose turns carry it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PromptError(ValueError):
    """A file of prompts that cannot be read; the message names file and line."""


@dataclass(frozen=True)
class Prompt:
    """What is asked, and the file and line that it comes from."""

    text: str
    source: str


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one data set."""

    name: str
    file: str
    format: str
    prompts: tuple[Prompt, ...]


def _solve(task: str) -> str:
    return f"{task}\n\nSolve this step by step, and give the final answer inside \\boxed{{}}."


def _first_turn(turns: Any) -> str:
    first = turns[0] if isinstance(turns, list) and turns else turns
    return first["content"] if isinstance(first, dict) else first


def _messages(line: Mapping[str, Any]) -> str:
    asked = [message["content"] for message in line["messages"] if message["role"] == "user"]
    return asked[0]


def _contest(line: Mapping[str, Any]) -> str:
    starter = line.get("starter_code") or ""
    start = f"\n\nBegin with this code:\n```python\n{starter}\n```" if starter else ""
    return f"Write a Python program that solves this task.\n\n{line['question_content']}{start}"


def _instruction(line: Mapping[str, Any]) -> str:
    return f"{line['instruction']}\n\n{line['input']}" if line.get("input") else line["instruction"]


def _function(line: Mapping[str, Any]) -> str:
    return f"Complete this Python function.\n\n```python\n{line['prompt']}\n```"


# The fields that a format needs, and how it asks. The first whose fields a line has is taken, so the order counts:
# Alpaca's lines have a text too, and HumanEval's a prompt.
FORMATS: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], str]]] = {
    "turns": (("turns",), lambda line: _first_turn(line["turns"])),
    "messages": (("messages",), _messages),
    "contest": (("question_content",), _contest),
    "problem": (("problem",), lambda line: _solve(line["problem"])),
    "question": (("question",), lambda line: _solve(line["question"])),
    "instruction": (("instruction",), _instruction),
    "function": (("prompt", "entry_point"), _function),
    "prompt": (("prompt",), lambda line: _first_turn(line["prompt"])),
    "text": (("text",), lambda line: line["text"]),
}


def read_set(argument: str, limit: int | None = None, seed: int = 0) -> PromptSet:
    """The data set of a `NAME=FILE` or `NAME:FORMAT=FILE` argument.

    Args:
        argument: as typed.
        limit: how many prompts at most, drawn at random; all of them in the file's order by default.
        seed: of the draw.

    Raises:
        PromptError: the argument, the file or a line of it cannot be used.
    """
    head, equals, file = argument.partition("=")
    name, colon, wanted = head.partition(":")
    if not equals or not name or not file:
        raise PromptError(f"asked for NAME=FILE or NAME:FORMAT=FILE, found {argument!r}: gsm8k=gsm8k.jsonl, say")
    if colon and wanted not in FORMATS:
        raise PromptError(f"asked for the format {wanted!r} of {name}; formats are {', '.join(FORMATS)}")
    found, prompts = _read_file(Path(file), wanted or None)
    if limit is not None and limit < len(prompts):
        chosen = sorted(random.Random(seed).sample(range(len(prompts)), limit))
        prompts = [prompts[index] for index in chosen]
    return PromptSet(name, file, found, tuple(prompts))


def _read_file(path: Path, wanted: str | None) -> tuple[str, list[Prompt]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"asked for prompts in {path}, which cannot be read as text: {error}") from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise PromptError(f"asked for prompts in {path}, found no line in it: one JSON object a line is needed")
    prompts = []
    for number, text in numbered:
        source = f"{path}:{number}"
        line = _parse(text, source)
        if wanted is None:
            wanted = _recognise(line, source)
        prompts.append(Prompt(_ask(line, wanted, source), source))
    return str(wanted), prompts


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise PromptError(f"{source}: asked for one JSON object a line, found {text[:60]!r}: {error}") from None
    if not isinstance(line, dict):
        raise PromptError(f"{source}: asked for one JSON object a line, found {text[:60]!r}")
    return line


def _recognise(line: Mapping[str, Any], source: str) -> str:
    for name, (fields, _) in FORMATS.items():
        if all(field in line for field in fields):
            return name
    known = "; ".join(f"{name}: {' and '.join(fields)}" for name, (fields, _) in FORMATS.items())
    raise PromptError(f"{source}: found the fields {', '.join(line) or 'none'}, of no known format. Formats: {known}")


def _ask(line: Mapping[str, Any], name: str, source: str) -> str:
    fields, build = FORMATS[name]
    if missing := [field for field in fields if field not in line]:
        raise PromptError(
            f"{source}: asked for the field {', '.join(missing)} of format {name}, found {', '.join(line)}"
        )
    try:
        text = build(line)
    except (KeyError, IndexError, TypeError) as error:
        raise PromptError(f"{source}: not a line of format {name} ({type(error).__name__}: {error})") from None
    if not isinstance(text, str) or not text.strip():
        raise PromptError(f"{source}: asked for a prompt of format {name}, found {text!r}")
    return text
