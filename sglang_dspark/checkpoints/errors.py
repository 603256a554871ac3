"""The error every check of a checkpoint raises."""

from __future__ import annotations

from collections.abc import Sequence

# Of a message. A checkpoint decides how many tensors are wrong and how long their names are.
MAX_LINES = 500
MAX_CHARACTERS = 2000


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message lists every problem found, not only the first.

    Args:
        where: the path or repository the checkpoint was read from.
        problems: one sentence each: what was asked, what was found, what to do.
        subject: what the checkpoint was read as.
    """

    def __init__(self, where: str, problems: Sequence[str], subject: str = "DSpark draft") -> None:
        self.where = where
        self.problems = tuple(printable(problem) for problem in problems)
        lines = [f"\n  - {problem}" for problem in self.problems[:MAX_LINES]]
        if len(self.problems) > MAX_LINES:
            lines.append(f"\n  - and {len(self.problems) - MAX_LINES} more")
        super().__init__(f"The {subject} {printable(where)} cannot be used:{''.join(lines)}")


def printable(text: str) -> str:
    """The text, cut where it is long, with everything escaped that a terminal would act on or a log could not write.

    Names come from the checkpoint: they may hold line breaks, colours, or halves of characters.
    """
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}... ({len(text)} characters)"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
