"""Every test runs on SGLang's CPU engine, whichever way pytest was started.

The variable must be there, and the stand-ins in place, before anything imports SGLang; servers that tests start
inherit it. `SGLANG_USE_CPU_ENGINE=0 pytest ...` runs the parity tests on a machine's GPU. `DSPARK_NIGHTLY=1 pytest ...`
adds the tests marked `nightly`, which take from minutes to hours.
"""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
# The models are tiny: more threads than one only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from sglang_dspark.serving.cpu import standins  # noqa: E402  (the variables come first)
from tests import reports  # noqa: E402

standins.install()

NIGHTLY = os.environ.get("DSPARK_NIGHTLY") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Print what the run has shown at its end, xdist's workers included."""
    config.pluginmanager.register(reports, "dspark-reports")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own turn
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the nightly tests unless they were asked for, and keep all servers on one xdist worker.

    pytest counts the ones left out as deselected. Servers share session fixtures and would compete for the cores.
    """
    left_out = {item for item in items if item.get_closest_marker("nightly") and not NIGHTLY}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.xdist_group("servers"))
