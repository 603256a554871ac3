"""How these tests start servers: not with `serve`, whose servers must end without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_dspark.cli.server import CPU_ENGINE, Server
from sglang_dspark.demo import DemoPair


@pytest.fixture(scope="session")
def server_of(logs: Path) -> Callable[..., Server]:
    """`server_of(pair, "name", dtype=..., port=..., VARIABLE=...)`: not started yet; its log is name.log."""

    def server_of(
        pair: DemoPair, name: str, *, dtype: str = "float32", port: int | None = None, **environment: str
    ) -> Server:
        arguments = ["--model-path", str(pair.target), "--device", "cpu", "--dtype", dtype]
        arguments += ["--max-total-tokens", "8192", "--speculative-algorithm", "dspark"]
        arguments += ["--speculative-draft-model-path", str(pair.draft)]
        return Server(arguments, logs / f"{name}.log", environment={**CPU_ENGINE, **environment}, port=port)

    return server_of
