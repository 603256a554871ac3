"""Prompts for the trained pair: beginnings of Python code, all different, always the same. Written for this project."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

NOUNS = ("message", "path", "socket", "header", "token", "buffer", "record", "queue", "table", "worker", "archive")
VERBS = (
    "read",
    "write",
    "close",
    "parse",
    "format",
    "update",
    "check",
    "remove",
    "load",
    "copy",
    "find",
    "reset",
    "send",
)

# {n} is a noun, {v} a verb, {N} the noun as a class name. None ends in a space: the tokenizer joins a space to the
# word behind it, so a prompt that ends in one is a beginning that no text has.
OPENINGS = (
    "def {v}_{n}(self, {n}, timeout=None):\n    if",
    'def {v}_{n}({n}):\n    """',
    "class {N}Error(Exception):\n    def",
    "class {N}:\n    def __init__(self, {n}=None):\n        self.",
    "    def {v}(self):\n        if self._{n} is None:\n            return",
    "    def {v}_{n}(self, name, value):\n        try:\n            self.",
    "import os\nimport sys\nfrom {n} import",
    "for {n} in self.{n}s:\n    if not {n}.",
    "with open({n}, 'rb') as f:\n    data =",
    "    while True:\n        {n} = self.{v}_{n}()\n        if not {n}:\n            break\n",
    "# If the {n} is empty,",
    "if __name__ == '__main__':\n    {v}_{n}(",
    "    @property\n    def {n}(self):\n        return",
    "    raise ValueError('{n} must be",
    "    return {n}.{v}(",
    "    assert isinstance({n},",
)


def code_prompts(count: int = 64) -> list[str]:
    """The first `count`, at most 176: openings of a function, a class, a loop and so on, over changing names."""
    return list(islice(_all(), count))


def _all() -> Iterator[str]:
    # 11 nouns, 13 verbs and 16 openings share no factor: every step changes all three, and 11 * 16 prompts differ even
    # where an opening has no verb.
    for step in range(len(NOUNS) * len(OPENINGS)):
        noun, verb = NOUNS[step % len(NOUNS)], VERBS[step % len(VERBS)]
        opening = OPENINGS[step % len(OPENINGS)]
        yield opening.replace("{n}", noun).replace("{v}", verb).replace("{N}", noun.capitalize())
