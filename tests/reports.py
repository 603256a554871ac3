"""What a run has shown, printed at its end: the executors that ran and the figures that budgets judged.

With pytest-xdist the tests run in workers, which hand their part over when they finish.
``DSPARK_REQUIRE_EXECUTORS="context_kv/torch/cpu,context_kv/triton/interpreter"`` fails the run when a listed pair did
not run, whatever the reason: skipped, deselected, misspelt.
"""

from __future__ import annotations

import os

import pytest

RAN = pytest.StashKey[set]()
FIGURES = pytest.StashKey[dict]()


def pytest_configure(config):
    """Nothing has run yet."""
    config.stash[RAN], config.stash[FIGURES] = set(), {}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """A worker has finished: take over what it has shown."""
    handed_over = getattr(node, "workeroutput", {}).get("dspark", {})
    node.config.stash[RAN].update(handed_over.get("ran", []))
    node.config.stash[FIGURES].update(handed_over.get("figures", {}))


def missing_executors(config: pytest.Config) -> list[str]:
    """The required executors that did not run."""
    required = (name.strip() for name in os.environ.get("DSPARK_REQUIRE_EXECUTORS", "").split(","))
    return [name for name in required if name and name not in config.stash[RAN]]


def pytest_sessionfinish(session):
    """Fail a run that left out a required executor; a worker only hands over what it has."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["dspark"] = {"ran": sorted(config.stash[RAN]), "figures": config.stash[FIGURES]}
        return
    passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if passed and missing_executors(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Name the executors that ran, the required ones that did not, and every figure."""
    if ran := config.stash[RAN]:
        terminalreporter.section("parity executors")
        terminalreporter.line("ran: " + ", ".join(sorted(ran)))
    if missing := missing_executors(config):
        terminalreporter.line("FAILED, required and did not run: " + ", ".join(missing), red=True)
    if figures := config.stash[FIGURES]:
        terminalreporter.section("figures")
        for name in sorted(figures):
            terminalreporter.write_line(f"{name}: {figures[name]}")
