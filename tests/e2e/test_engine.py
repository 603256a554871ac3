"""The offline engine, and what a user's own script must do to use it on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark.cli.server import CPU_ENGINE
from sglang_dspark.demo import DemoPair
from tests.e2e.serving import NEW_TOKENS, Answer

pytestmark = pytest.mark.e2e

SCRIPT = """
import json, sys
import sglang

if __name__ == "__main__":
    arguments = json.load(sys.stdin)
    engine = sglang.Engine(**arguments["engine"])
    sampling = {"temperature": 0, "max_new_tokens": arguments["new_tokens"]}
    answers = engine.generate(arguments["texts"], sampling)
    engine.shutdown()
    json.dump([answer["output_ids"] for answer in answers], open(arguments["out"], "w"))
"""


def test_offline_engine(pair: DemoPair, texts: list[str], plain_answers: list[Answer], tmp_path: Path) -> None:
    """64 prompts in one call: the same tokens as without speculation."""
    script, out = tmp_path / "offline.py", tmp_path / "tokens.json"
    script.write_text(SCRIPT)
    engine = {
        "model_path": str(pair.target),
        "speculative_algorithm": "dspark",
        "speculative_draft_model_path": str(pair.draft),
        "device": "cpu",
        "dtype": "float32",
        "max_total_tokens": 32768,
    }
    arguments = {"engine": engine, "texts": texts, "new_tokens": NEW_TOKENS, "out": str(out)}
    ran = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(arguments),
        env={**os.environ, **CPU_ENGINE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert json.loads(out.read_text()) == [answer.tokens for answer in plain_answers]
