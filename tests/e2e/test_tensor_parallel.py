"""Two ranks over gloo: sharded heads, vocabulary and MLP give the answers of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dspark.demo import DemoPair
from tests.e2e.serving import Answer, accepted_length, ask_all, serve

pytestmark = pytest.mark.e2e


def test_two_ranks(pair: DemoPair, texts: list[str], plain_answers: list[Answer], logs: Path, tmp_path: Path) -> None:
    """Catches a shard loaded into the wrong rows; the accepted length tells whether the draft's were right.

    The build cache is empty, so both ranks compile the kernels at once: each must load a whole file.
    """
    cache = tmp_path / "kernels"
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_DSPARK_CACHE": str(cache)}
    with serve(pair, logs / "tp2.log", "--tp-size", "2", environment=environment) as server:
        found = ask_all(server, texts[:24])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain_answers[:24]]
    assert accepted_length(found) > 2
    built = sorted(path.name.split("-host-")[0] for path in cache.iterdir())
    assert built == ["context_kv_writer", "qk_norm_rope_insert"], "a file is missing, or a rank left an unfinished one"
    log = (logs / "tp2.log").read_text(errors="replace")
    assert "cannot be loaded" not in log and "failed with status" not in log
