"""How the end-to-end tests start servers and ask them; every server here is the real one, over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.cli.server import CPU_ENGINE, Server
from sglang_dspark.demo import DemoPair

NEW_TOKENS = 48
AT_ONCE = 16


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    meta: dict[str, Any]

    @property
    def verify_steps(self) -> int:
        return self.meta["spec_verify_ct"]

    @property
    def accepted(self) -> int:
        """Draft tokens accepted plus a bonus token for every verify step."""
        return self.meta["spec_num_correct_drafts"] + self.verify_steps


def accepted_length(answers: Sequence[Answer]) -> float:
    return sum(answer.accepted for answer in answers) / sum(answer.verify_steps for answer in answers)


@contextmanager
def serve(
    pair: DemoPair,
    log: Path,
    *flags: str,
    speculative: bool = True,
    dtype: str = "float32",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    arguments = ["--model-path", str(pair.target), "--device", "cpu", "--dtype", dtype, "--max-total-tokens", "32768"]
    # An idle scheduler would otherwise turn in circles on a core that the other tests could use.
    arguments.append("--sleep-on-idle")
    if speculative:
        arguments += ["--speculative-algorithm", "dspark", "--speculative-draft-model-path", str(pair.draft)]
    with Server([*arguments, *flags], log, environment={**CPU_ENGINE, **(environment or {})}) as server:
        yield server
        # A scheduler that died is restarted by nobody: the log must be free of tracebacks.
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, server.log_tail(60)
        if speculative:
            assert "sglang-dspark" in text and "active: worker=CpuDSparkWorker" in text


def ask(server: Server, text: str, new_tokens: int = NEW_TOKENS, **body: Any) -> Answer:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, **body.pop("sampling_params", {})}
    answer = server.post("/generate", {"text": text, "sampling_params": sampling, **body})
    return Answer(answer["output_ids"], answer["meta_info"])


def ask_all(server: Server, texts: Sequence[str], **body: Any) -> list[Answer]:
    """Every text, AT_ONCE requests under way at any time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda text: ask(server, text, **body), texts))


# What a user writes to serve offline; the variable that asks for the CPU engine is set before Python starts.
ENGINE_SCRIPT = """
import json, sys
import sglang

if __name__ == "__main__":
    arguments = json.load(sys.stdin)
    engine = sglang.Engine(**arguments["engine"])
    answers = engine.generate(arguments["texts"], {"temperature": 0, "max_new_tokens": arguments["new_tokens"]})
    engine.shutdown()
    with open(arguments["out"], "w") as out:
        json.dump([[answer["output_ids"], answer["meta_info"]] for answer in answers], out)
"""


def ask_engine(pair: DemoPair, texts: Sequence[str], folder: Path, **arguments: Any) -> list[Answer]:
    """The texts in one call of the offline engine with the pair's draft."""
    script, out = folder / "offline.py", folder / "answers.json"
    script.write_text(ENGINE_SCRIPT)
    engine = {
        "model_path": str(pair.target),
        "speculative_algorithm": "dspark",
        "speculative_draft_model_path": str(pair.draft),
        "device": "cpu",
        "dtype": "float32",
        "max_total_tokens": 32768,
        **arguments,
    }
    ran = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps({"engine": engine, "texts": list(texts), "new_tokens": NEW_TOKENS, "out": str(out)}),
        env={**os.environ, **CPU_ENGINE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-5000:]
    return [Answer(*answer) for answer in json.loads(out.read_text())]
