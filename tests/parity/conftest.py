"""Which (backend, executor) pairs really ran: tests/reports.py prints and enforces them, so that a skip cannot hide."""

from __future__ import annotations

import pytest

from tests.reports import RAN

from .executors import INTERPRETER


@pytest.fixture
def ran(request):
    """Call it with the name of an executor once it has run."""
    return request.config.stash[RAN].add


@pytest.fixture(scope="session", autouse=True)
def stop_interpreter():
    """End the interpreter's process with the tests."""
    yield
    INTERPRETER.stop()
