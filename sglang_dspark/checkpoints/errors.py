"""The error every check of a draft checkpoint raises."""

from __future__ import annotations

from collections.abc import Sequence


class CheckpointError(ValueError):
    """A draft checkpoint cannot be served; the message lists every problem found, not only the first.

    Args:
        where: the path or repository the checkpoint was read from.
        problems: one sentence each: what was asked, what was found, what to do.
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"The DSpark draft {where} cannot be used:{lines}")
