"""Prompt sets that need no file, for trying things out with the demo pair: what it was trained to continue.

`demo-code` are this project's own openings of Python code; `demo-files` are pieces of the standard library's held-out
files (`train.corpus`), so they differ between Python versions and none was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sglang_dspark.demo import code_prompts
from sglang_dspark.evaluate.prompts import Prompt, PromptSet
from sglang_dspark.train import corpus

NAMES = ("demo-code", "demo-files")
COUNT = 176
# Characters of a piece, about 70 of the demo's tokens, and how far apart pieces of one file begin.
PIECE, STRIDE = 240, 2400


def demo_set(name: str) -> PromptSet:
    """The prompts of a name in `NAMES`, at most `COUNT`."""
    texts = code_prompts(COUNT) if name == NAMES[0] else list(islice(_pieces(), COUNT))
    prompts = tuple(Prompt(text, f"{name}:{number}") for number, text in enumerate(texts, start=1))
    return PromptSet(name, "built in", "text", prompts)


def _pieces() -> Iterator[str]:
    """One piece of every file in turn, then the second of every file, and so on: all files are heard early."""
    texts = corpus.read_texts(held_out=True)
    for start in range(0, max(map(len, texts)), STRIDE):
        for text in texts:
            line = text.find("\n", start) + 1
            if line and line + PIECE < len(text) and text[line : line + PIECE].strip():
                yield text[line : line + PIECE].rstrip()
