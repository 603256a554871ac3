"""A server that cannot be is refused in seconds, by its name for it, not minutes later by a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dspark.cli.server import ServerFailed
from sglang_dspark.demo import DemoPair
from tests.e2e.serving import serve

pytestmark = pytest.mark.e2e


def test_every_reason_at_once(pair: DemoPair, logs: Path) -> None:
    """Fault 22. Of what is refused, tests/unit/serving/test_limits.py has the whole list."""
    flags = ("--tp-size", "2", "--dcp-size", "2", "--disaggregation-mode", "decode", "--dtype", "float16")
    fake = ("--disaggregation-transfer-backend", "fake")
    with pytest.raises(ServerFailed) as error, serve(pair, logs / "refused.log", *flags, *fake):
        pass
    message = str(error.value)
    for reason in ("--dcp-size 2", "--disaggregation-mode decode", "--dtype float16"):
        assert f"- {reason}: " in message
