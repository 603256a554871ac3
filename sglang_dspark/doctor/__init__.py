"""`sglang-dspark doctor`: whether everything is in place, looked at from outside a server.

Most faults of a DSpark installation raise nothing. SGLang swallows a plugin's exceptions, a refused backend falls
back, and a draft of another target only proposes badly. Each check here looks at one such place and yields findings.

    findings.py         a finding, a group of them, and the case that checks are asked about
    host.py             SGLang's version, the contract, and what keeps SGLang from loading the plugin
    registration.py     a fresh process that loads SGLang's plugins as a server does (fresh_process.py), and its answer
    machine.py          the platform, and the native kernels' code or compilers
    backends.py         every backend of every op with its refusals, for MiniMax-M3's draft
    aiter_library.py    AITER's functions that a backend would call (AMD)
    switches.py         SGLang's environment switches that matter
    checkpoint_pair.py  a target and its draft: the lint, and how much memory they ask for

A new check is a function from `Case` to findings, and a line in `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglang_dspark.doctor import (
    aiter_library,
    backends,
    checkpoint_pair,
    host,
    machine,
    registration,
    switches,
)
from sglang_dspark.doctor.findings import Case, Check, Finding, Group, first_line, problem

__all__ = ["CHECKS", "Case", "Check", "Finding", "Group", "examine"]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("SGLang", host.check_sglang),
    ("plugin", host.check_entry_point),
    ("plugin in a fresh process", registration.check),
    ("machine", machine.check_platform),
    ("native kernels", machine.check_native_kernels),
    ("op backends", backends.check),
    ("AITER", aiter_library.check),
    ("switches", switches.check),
    ("checkpoints", checkpoint_pair.check),
    ("memory", checkpoint_pair.check_memory),
)


def examine(case: Case, checks: Sequence[tuple[str, Check]] = CHECKS) -> Iterator[Group]:
    """Run the checks in order; a group each, without those that have nothing to say here."""
    for title, check in checks:
        findings = tuple(_findings(check, case))
        if findings:
            yield Group(title, findings)


def _findings(check: Check, case: Case) -> Iterator[Finding]:
    try:
        yield from check(case)
    except Exception as error:  # A broken installation may break anywhere, and the other checks still have their say.
        yield problem("this check", f"it ended in {first_line(error)}", "report it to sglang-dspark with this line")
