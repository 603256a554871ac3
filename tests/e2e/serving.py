"""How the end-to-end tests start servers and ask them; every server here is the real one, over HTTP."""

from __future__ import annotations

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
