"""The peer: NVIDIA's nemo-automodel, whose DSpark draft ours is held to.

Without it only test_peer.py is collected, and fails: nothing of the rest can be imported, and a skip would hide that
nothing was compared.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

collect_ignore_glob = [] if importlib.util.find_spec("nemo_automodel") else ["test_[!p]*.py"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
