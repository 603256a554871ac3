"""docs/reliability.md names tests: they exist, say which fault they guard against, and no fault is without one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
FAULTS = range(1, 24)
TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (\d+)\.? [^|]*\|([^|]*)\|([^|]*)\|$", re.MULTILINE)
ROWS = {int(number): (what, tests) for number, what, tests in ROW.findall(PAGE)}


@cache
def docstrings_of(path: str) -> dict[str, str]:
    """The test functions of a file and their docstrings."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }


@pytest.mark.parametrize("path, name", sorted(set(TEST_ID.findall(PAGE))))
def test_every_test_exists(path: str, name: str) -> None:
    """A promise whose test was renamed or removed is no longer kept by anything."""
    assert name in docstrings_of(path)


def test_every_fault_has_a_row() -> None:
    assert sorted(ROWS) == list(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_test_that_names_it(fault: int) -> None:
    """Whoever changes such a test must see what it is there for."""
    what, tests = ROWS[fault]
    assert what.strip()
    named = TEST_ID.findall(tests)
    assert named
    for path, name in named:
        numbers = re.match(r"Faults? ([\d, and]+)", docstrings_of(path)[name])
        assert numbers and str(fault) in re.findall(r"\d+", numbers[1]), f"{path}::{name} does not name fault {fault}"
