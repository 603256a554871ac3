"""What a serving benchmark asks: real prompts from a file, or random token ids; nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Workload:
    """The requests of every run.

    ``arguments`` are those of SGLang's benchmark, ``available`` how many different requests there are (None: any
    number), ``case`` what a row says of them, ``texts`` prompts to compare answers with.
    """

    arguments: tuple[str, ...]
    available: int | None
    case: dict[str, int | str]
    texts: tuple[str, ...]


def random_ids(input_tokens: int, output_tokens: int, texts: Sequence[str]) -> Workload:
    """Prompts of so many arbitrary token ids. Their throughput means something, their accepted length nothing."""
    lengths = ["--random-input-len", str(input_tokens), "--random-output-len", str(output_tokens)]
    return Workload(
        ("--dataset-name", "random-ids", "--tokenize-prompt", *lengths, "--random-range-ratio", "1.0"),
        None,
        {"data": "random ids", "input_tokens": input_tokens, "output_tokens": output_tokens},
        tuple(texts),
    )


def from_prompts(prompts: Sequence[str], name: str, output_tokens: int, folder: Path) -> Workload:
    """Prompts as they are, each answered with so many tokens; a file in ``folder`` is what SGLang's benchmark reads."""
    path = folder / "prompts.jsonl"
    # It reads the first turn as the prompt and wants a second one, whose length the number of tokens overrides.
    turns = ({"conversations": [{"content": prompt}, {"content": "unused"}]} for prompt in prompts)
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    return Workload(
        ("--dataset-name", "custom", "--dataset-path", str(path), "--sharegpt-output-len", str(output_tokens)),
        len(prompts),
        {"data": name, "output_tokens": output_tokens},
        tuple(prompts),
    )


def read_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file: ``prompt`` or ``text`` of each line, or its first turn.

    Raises:
        ValueError: a line holds none of them, or the file none at all.
    """
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(json.loads(line)))
        except (ValueError, KeyError, IndexError, TypeError):
            raise ValueError(
                f'{path}:{number}: expected {{"prompt": "..."}}, {{"text": "..."}}, {{"turns": ["...", ...]}} or '
                f'{{"conversations": [{{"content": "..."}}, ...]}}, found {line[:60]!r}'
            ) from None
    if not prompts:
        raise ValueError(f"{path} holds no prompts: expected one JSON object a line")
    return prompts


def _prompt(found: dict[str, Any]) -> str:
    for key in ("prompt", "text"):
        if key in found:
            prompt = found[key]
            break
    else:
        first = found["turns"][0] if "turns" in found else found["conversations"][0]
        prompt = first if isinstance(first, str) else first.get("content") or first["value"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(prompt)
    return prompt
