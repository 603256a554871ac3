"""Every test runs on SGLang's CPU engine, whichever way pytest was started.

The variable must be there, and the stand-ins in place, before anything imports SGLang; servers that tests start
inherit it. `SGLANG_USE_CPU_ENGINE=0 pytest ...` runs the parity tests on a machine's GPU. `DSPARK_NIGHTLY=1 pytest ...`
adds the tests marked `nightly`, which take from minutes to hours.
"""

from __future__ import annotations

import os
from typing import Any

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the nightly tests unless they were asked for; pytest counts them as deselected."""
    left_out = {item for item in items if item.get_closest_marker("nightly") and not NIGHTLY}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker gets all that starts servers, whose fixtures are shared; the other modules go where there is room.

    xdist's own groups (3.8.0, --dist loadgroup) were seen without effect under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ServersTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "servers" if nodeid.startswith("tests/e2e/") else nodeid.split("::", 1)[0]

    return ServersTogether(config, log)
