"""The profiler is started only against a server that was made for it, with prompts that fit its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from sglang_dspark.cli.eval_steps import table_text
from sglang_dspark.evaluate import steps
from sglang_dspark.evaluate.steps import StepRun, check_recording
from sglang_dspark.server_http import ServerError

RECORD = {"simulate_acc_len": 1.0, "mode": "static"}


def info(record: dict[str, Any] | None = RECORD, **more: Any) -> dict[str, Any]:
    return {"internal_states": [{"dspark_info_record": record} if record else {}], **more}


def test_a_server_made_for_it() -> None:
    check_recording("url", info(), offdiagonal=False)
    check_recording("url", info({**RECORD, "mode": "compact"}), offdiagonal=True)


@pytest.mark.parametrize(
    ("found", "offdiagonal", "message"),
    [
        (info(None), False, "it records no steps.*SPS_RECORD=1 SGLANG_SIMULATE_ACC_LEN=1.0 .*VERIFY_MODE=static"),
        (info({**RECORD, "simulate_acc_len": None}), False, "simulates an accepted length of None, not 1.0"),
        (info({**RECORD, "mode": "compact"}), False, "mode compact, not static"),
        (info(), True, "mode static, not compact or cap-accept.*VERIFY_MODE=compact"),
        (info(disable_cuda_graph=True), False, "without graphs"),
        ({}, False, "records no steps"),
    ],
)
def test_other_servers(found: dict[str, Any], offdiagonal: bool, message: str) -> None:
    """The profiler itself would end in a traceback, or measure what depends on luck."""
    with pytest.raises(ServerError, match=message):
        check_recording("url", found, offdiagonal=offdiagonal)


def tokenizer_folder(folder: Path, size: int) -> str:
    words = {f"w{index}": index for index in range(size)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return str(folder)


def profiled(monkeypatch: pytest.MonkeyPatch, out: Path, run: StepRun, **more: Any) -> tuple[list[str], int | None]:
    """What the profiler would be started with, and the size of the tokenizer that it is handed."""
    seen: list[Any] = []

    def run_sglang(module: str, arguments: list[str], *, poll: Any) -> None:
        size = None
        if "--local-tokenizer-path" in arguments:
            folder = Path(arguments[arguments.index("--local-tokenizer-path") + 1])
            size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
            assert (folder / "tokenizer_config.json").exists()
        seen.append((arguments, size))
        poll(1.0)
        out.write_text(json.dumps({"sample_batch_tokens": [1], "sample_steps_per_sec": [2.0], "max_batch_tokens": 1}))

    monkeypatch.setattr(
        steps, "read_info", lambda url: info({**RECORD, "mode": "compact" if run.fractions else "static"}, **more)
    )
    monkeypatch.setattr(steps, "run_sglang", run_sglang)
    steps.profile("http://host:1", out, run, lambda rounds, seconds: None)
    return seen[0]


def test_the_profilers_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments, size = profiled(monkeypatch, tmp_path / "deep" / "t.json", StepRun((1, 2), (0.5, 1.0), 4, 0.5, 2))
    assert arguments[:5] == ["all", "--base-url", "http://host:1", "--out", str(tmp_path / "deep" / "t.json")]
    line = " ".join(arguments)
    for option in (
        "--batch-size 1 2",
        "--fracs 0.5 1.0",
        "--min-steady-steps 4",
        "--min-steady-seconds 0.5",
        "--repeats 2",
    ):
        assert option in line
    assert size is None


@pytest.mark.parametrize(("vocabulary", "handed"), [(1024, 2024), (2000, 3000), (2001, None), (1002, 2002)])
def test_prompts_fit_a_small_vocabulary(
    vocabulary: int, handed: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The profiler draws tokens from 1000 to the tokenizer's size less 1000: 1000 more, and it draws real ones only."""
    path = tokenizer_folder(tmp_path, vocabulary)
    assert profiled(monkeypatch, tmp_path / "t.json", StepRun(), tokenizer_path=path)[1] == handed


def test_a_vocabulary_that_is_too_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="vocabulary has 900 tokens.*more than 1001"):
        profiled(monkeypatch, tmp_path / "t.json", StepRun(), tokenizer_path=tokenizer_folder(tmp_path, 900))


def test_tables_in_words() -> None:
    plain = {"sample_batch_tokens": [8, 32], "sample_steps_per_sec": [20.0, 5.5], "max_batch_tokens": 32}
    assert table_text(plain).splitlines()[2:] == ["| 8 | 20.00 |", "| 32 | 5.50 |"]
    both = {
        "bias_seconds": 0.01,
        "bs_probes": [1, 4],
        "alpha_seconds": [0.0, 0.002],
        "m_probes": [8],
        "theta_seconds": [0.0],
    }
    assert table_text(both).splitlines()[-2:] == ["| requests | 4 | 2.00 |", "| tokens | 8 | 0.00 |"]
    assert "10.00 ms" in table_text(both)
