"""The peer is there, in the version that the comparisons were made with."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

REQUIREMENTS = "requirements/cpu-engine-test-no-deps.txt"


def test_the_peer_is_installed():
    root = Path(__file__).parents[3]
    pins = [line for line in (root / REQUIREMENTS).read_text().splitlines() if line.startswith("nemo-automodel==")]
    try:
        found = importlib.metadata.version("nemo-automodel")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    assert pins == [f"nemo-automodel=={found}"], f"`make test` installs it: pip install --no-deps -r {REQUIREMENTS}"
    assert f'automodel = ["{pins[0]}"]' in (root / "pyproject.toml").read_text()
