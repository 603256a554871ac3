"""Prompts for the text pair: many lengths, several with a long shared beginning, all different, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

PEOPLE = ("The sailor", "An old friend", "The teacher", "Her brother", "A stranger", "The gardener", "My aunt")
DEEDS = (
    "walks along the shore",
    "counts the lamps on the hill",
    "writes a letter to the sea",
    "waits under the bridge",
    "sells apples and rope",
    "asks the clock for the time",
    "paints the boat green",
    "listens to the rain",
    "carries water to the mill",
)
REASONS = (
    "because the bread is still warm",
    "until the bells ring",
    "and nobody knows why",
    "while the river sleeps",
    "when the winter comes",
    "after the third turn",
    "so that the children may play",
    "before the sun is up",
)
QUESTIONS = ("What happens next?", "Who opens the gate?", "Why seven words?", "Where does the road end?")
OPENINGS = (
    "The river", "Once", "A", "In the evening the keeper", "She said that", "7 x 8 =", "def turn(wheel):", "Hello!"
)  # fmt: skip


def prompts(count: int = 64) -> list[str]:
    """The first `count`. Of every eight, three pass 200 tokens, and two of those start like two of the last eight."""
    return list(islice(_all(), count))


def _all() -> Iterator[str]:
    sentences = _sentences()
    shared = [" ".join(islice(sentences, 7)) for _ in range(2)]
    for index, opening in enumerate(cycle(OPENINGS)):
        question = QUESTIONS[index % len(QUESTIONS)]
        yield opening if index < len(OPENINGS) else f"{opening} {next(sentences)}"
        yield next(sentences)
        yield " ".join(islice(sentences, 12 + index % 5))
        yield f"{shared[0]} {next(sentences)}"
        yield f"{shared[1]} {next(sentences)} {question}"
        yield f"{next(sentences)} {question}"
        yield " ".join(islice(sentences, 2 + index % 4))
        yield f"{question} {next(sentences)}"


def _sentences() -> Iterator[str]:
    """504 different sentences, in an order that changes every word each time, over and over."""
    size = len(PEOPLE) * len(DEEDS) * len(REASONS)
    for step in cycle(range(size)):
        yield f"{PEOPLE[step % 7]} {DEEDS[step % 9]} {REASONS[step % 8]}."
