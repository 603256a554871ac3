"""Markdown of reports."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])
