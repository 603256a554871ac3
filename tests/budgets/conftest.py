"""The figures that the budgets judged, which tests/reports.py prints: emulated counts, no measurements."""

from __future__ import annotations

import os

import pytest

from tests.reports import FIGURES

# Set in CI: a budget that cannot be checked is then a failure, so that a skip cannot hide.
REQUIRE = "DSPARK_REQUIRE_BUDGETS"


@pytest.fixture
def figure(request):
    """Call it with a name and a text."""
    return request.config.stash[FIGURES].__setitem__


@pytest.fixture
def cannot_check():
    """Call it with the reason why a budget cannot be checked here."""

    def stop(reason: str) -> None:
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, and {reason}")
        pytest.skip(reason)

    return stop
