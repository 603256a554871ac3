"""Ends what the executors started."""

from __future__ import annotations

import pytest

from .executors import INTERPRETER


@pytest.fixture(scope="session", autouse=True)
def stop_qk_norm_rope_interpreter():
    """End the interpreter's process with the tests."""
    yield
    INTERPRETER.stop()
