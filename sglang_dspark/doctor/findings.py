"""What a check reports, and what it is asked about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sglang_dspark.checkpoints.lint import Level


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: ok, warning or problem.
        subject: what was looked at.
        found: what is there.
        asked: what should be, where that is something else.
        remedy: what to do; every warning and problem has one.
    """

    level: Level
    subject: str
    found: str
    asked: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The line behind the subject."""
        asked = f"asked for {self.asked}, found {self.found}" if self.asked else self.found
        return f"{asked}; {self.remedy}" if self.remedy else asked


@dataclass(frozen=True)
class Group:
    """The findings of one check, under its title."""

    title: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Case:
    """What the doctor is asked about: this process's environment, and a pair of checkpoints if one was named.

    ``quick`` leaves out the fresh process. ``progress`` is told what is going on where that takes seconds.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    target: Path | None = None
    draft: Path | None = None
    quick: bool = False
    progress: Callable[[str], None] = lambda what: None

    @property
    def cpu_engine(self) -> bool:
        """Whether SGLang's CPU engine is asked for; "1" and nothing else, as SGLang reads it."""
        return self.environment.get("SGLANG_USE_CPU_ENGINE") == "1"


Check = Callable[[Case], Iterable[Finding]]


def ok(subject: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, subject, found)


def warning(subject: str, found: str, remedy: str, asked: str = "") -> Finding:
    """It works, and perhaps not as wanted."""
    return Finding(Level.WARNING, subject, found, asked, remedy)


def problem(subject: str, found: str, remedy: str, asked: str = "") -> Finding:
    """It does not work, or not with this plugin."""
    return Finding(Level.PROBLEM, subject, found, asked, remedy)


def count(groups: Iterable[Group], level: Level) -> int:
    """How many findings are of a level."""
    return sum(finding.level is level for group in groups for finding in group.findings)


def first_line(error: BaseException) -> str:
    """What an exception says, on one line, with its type."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['(no message)'])[0]}"
