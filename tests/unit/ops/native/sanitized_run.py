"""What both children of `test_sanitizers` do: every named case, then drawn ones, and how many of each there were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis.strategies import SearchStrategy

from tests.parity.generated import profile


def run_all(named: Sequence[Any], drawn: SearchStrategy[Any], run: Callable[..., None], fault: str) -> None:
    for case in named:
        run(case, fault)
    sizes = []

    @profile(examples=100, nightly=2000)
    @given(drawn)
    def run_drawn(case: Any) -> None:
        run(case)
        sizes.append(case.tokens)

    run_drawn()
    print(f"{len(named)} cases ran clean, and {len(sizes)} drawn ones")
