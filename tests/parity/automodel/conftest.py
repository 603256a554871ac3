"""The peer: NVIDIA's nemo-automodel, whose DSpark draft ours is held to."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

PEER_VERSION = "0.7.0"


@pytest.fixture(scope="session", autouse=True)
def peer_installed():
    """A failure, not a skip: without the peer nothing here would be tested."""
    try:
        found = importlib.metadata.version("nemo-automodel")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != PEER_VERSION:
        pytest.fail(
            f"asked for nemo-automodel {PEER_VERSION}, found {found}; `make test` installs it "
            "(pip install --no-deps -r requirements/automodel.txt)"
        )


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
