"""Damaged drafts by the thousand: never a crash, never a hang, never a value that is served as another.

An input is known by the run's seed and its number; a failure names both and what was damaged, and
`DSPARK_FUZZ_ONLY=<seed>:<number>` runs that input alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from .drafts import Original, originals
from .examination import examine
from .inputs import damage

SEEDS = 4  # parts of a run, so that workers share them
INPUTS = 250  # of a part
NIGHTLY_INPUTS = 15_000
SECONDS = 20.0  # the longest that one input may take, on a busy machine


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory where there is one: every input is a folder of its own."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="dspark-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def drafts(place: Path) -> list[Original]:
    return originals(place / "originals")


def run(place: Path, drafts: list[Original], seed: int, inputs: int) -> Counter[str]:
    """Examine `inputs` damaged drafts; what was accepted, by kind."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for number in range(inputs):
        if os.environ.get("DSPARK_FUZZ_ONLY", f"{seed}:{number}") != f"{seed}:{number}":
            continue
        pick = Random(f"{seed}:{number}")
        original = pick.choice(drafts)
        folder = place / f"{seed}-{number}"
        done, began = damage(original, folder, pick), time.monotonic()
        try:
            examine(original, folder, counts)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{frame.filename}:{frame.lineno}"
            failures.append(f"input {seed}:{number}, {done:.300}: {type(error).__name__} at {at}: {str(error):.300}")
        finally:
            shutil.rmtree(folder)
        if time.monotonic() - began > SECONDS:
            failures.append(f"input {seed}:{number}, {done:.300}, took too long")
        counts["inputs"] += 1
    assert not failures, f"{len(failures)} of {counts}, the first:\n" + "\n".join(failures[:20])
    return counts


def test_the_originals_are_accepted(drafts: list[Original]) -> None:
    """A fuzzer whose undamaged drafts are refused would pass without testing anything."""
    for original in drafts:
        counts: Counter[str] = Counter()
        examine(original, original.draft, counts)
        assert len(counts) == 4 and set(counts.values()) == {1}, (original.name, counts)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_drafts(place: Path, drafts: list[Original], seed: int) -> None:
    counts = run(place, drafts, seed, INPUTS)
    # Some of the damage is none: both outcomes are met.
    assert 0.05 < counts["draft accepted by the server's check"] / counts["inputs"] < 0.8, counts


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_damaged_drafts_all_night(place: Path, drafts: list[Original], seed: int, record_property) -> None:
    for name, count in run(place, drafts, seed, NIGHTLY_INPUTS).items():
        record_property(name, count)
        print(f"seed {seed}: {count} {name}")
