"""The error every check of a checkpoint raises."""

from __future__ import annotations

from collections.abc import Sequence


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message lists every problem found, not only the first.

    Args:
        where: the path or repository the checkpoint was read from.
        problems: one sentence each: what was asked, what was found, what to do.
        subject: what the checkpoint was read as.
    """

    def __init__(self, where: str, problems: Sequence[str], subject: str = "DSpark draft") -> None:
        self.where = where
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"The {subject} {where} cannot be used:{lines}")
