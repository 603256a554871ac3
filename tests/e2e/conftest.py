"""What the end-to-end tests share: the demo pair, its variants, and the answers without speculation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.demo import DemoPair, DemoSpec, build, prompts
from tests.e2e.features import COMPACT_JSON, Features, ask_features
from tests.e2e.serving import Answer, ask_all, serve


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return prompts(64)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DemoPair]:
    """Builds a variant of the demo pair once: `pair_of(layout="released", block_size=4)`."""
    built: dict[str, DemoPair] = {}

    def pair_of(layout: str = "automodel", **changes: Any) -> DemoPair:
        key = repr((layout, sorted(changes.items())))
        if key not in built:
            built[key] = build(tmp_path_factory.mktemp("pair"), layout=layout, spec=DemoSpec.text(**changes))
        return built[key]

    return pair_of


@pytest.fixture(scope="session")
def pair(pair_of: Callable[..., DemoPair]) -> DemoPair:
    return pair_of()


@pytest.fixture(scope="session")
def plain(pair: DemoPair, texts: list[str], logs: Path) -> tuple[list[Answer], Features]:
    """What the float32 target answers without speculation."""
    with serve(pair, logs / "plain.log", *COMPACT_JSON, speculative=False) as server:
        return ask_all(server, texts), ask_features(server)


@pytest.fixture(scope="session")
def plain_answers(plain: tuple[list[Answer], Features]) -> list[Answer]:
    """The greedy answers to `texts`."""
    return plain[0]


@pytest.fixture(scope="session")
def plain_features(plain: tuple[list[Answer], Features]) -> Features:
    """The answers to every kind of request."""
    return plain[1]
