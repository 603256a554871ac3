"""Which (backend, executor) pairs really ran: printed at the end, and enforced, so that a skip cannot hide.

``DSPARK_REQUIRE_EXECUTORS="context_kv/torch/cpu,context_kv/triton/interpreter"`` fails the run when a listed pair did
not run, whatever the reason: skipped, deselected, misspelt.
"""

from __future__ import annotations

import os

import pytest

from .executors import INTERPRETER

RAN = pytest.StashKey[set]()


@pytest.fixture
def ran(request):
    """Call it with the name of an executor once it has run."""
    return request.config.stash.setdefault(RAN, set()).add


@pytest.fixture(scope="session", autouse=True)
def stop_interpreter():
    """End the interpreter's process with the tests."""
    yield
    INTERPRETER.stop()


def missing_executors(config: pytest.Config) -> list[str]:
    """The required executors that did not run."""
    required = (name.strip() for name in os.environ.get("DSPARK_REQUIRE_EXECUTORS", "").split(","))
    return [name for name in required if name and name not in config.stash.get(RAN, set())]


def pytest_sessionfinish(session):
    """Fail a run that left out a required executor."""
    passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if passed and missing_executors(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Name the executors that ran, and the required ones that did not."""
    terminalreporter.section("parity executors")
    terminalreporter.line("ran: " + (", ".join(sorted(config.stash.get(RAN, set()))) or "none"))
    if missing := missing_executors(config):
        terminalreporter.line("FAILED, required and did not run: " + ", ".join(missing), red=True)
