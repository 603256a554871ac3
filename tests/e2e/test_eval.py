"""`sglang-dspark eval` through its console script against the real server, and the files that it writes in use.

Two servers: one started as the step profiler needs it, and one that schedules by what came out, the table of step costs
and the fitted temperatures.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sglang_dspark.cli.server import Server
from sglang_dspark.demo import DemoPair, build, code_prompts, trained
from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.oracle import OracleJudge
from sglang_dspark.evaluate.samples import Samples, join, read_shards
from tests.e2e.serving import NEW_TOKENS, Answer, ask_all, serve
from tests.oracle.draft import Draft
from tests.oracle.generate import speculative_greedy
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e

COUNT = 24
PROFILED = {
    "SGLANG_DSPARK_ENABLE_SPS_RECORD": "1",
    "SGLANG_SIMULATE_ACC_LEN": "1.0",
    "SGLANG_RAGGED_VERIFY_MODE": "static",
}


@dataclass(frozen=True)
class Files:
    """What SGLang's server is handed."""

    steps: Path
    temperatures: Path


def eval_command(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """The console script, in a process of its own."""
    command = [sys.executable, "-c", "import sys; from sglang_dspark.cli import main; sys.exit(main())", "eval"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, env=dict(os.environ))
    assert ran.returncode == status, ran.stdout[-2000:] + ran.stderr[-4000:]
    return ran


@pytest.fixture(scope="module")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> DemoPair:
    """1024 tokens: SGLang's profiler needs more than 1001, which constructed pairs have not, and 2001 without help."""
    return build(tmp_path_factory.mktemp("trained"), spec=trained.SPEC)


@pytest.fixture(scope="module")
def files(trained_pair: DemoPair, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Both files by the command: step costs of a real server, temperatures from rounds as a server collects them."""
    folder = tmp_path_factory.mktemp("eval")
    found = Files(folder / "steps.json", folder / "sts.json")
    with serve(trained_pair, logs / "profiled.log", environment=PROFILED) as server:
        url = f"http://127.0.0.1:{server.port}"
        said = eval_command("steps", "--url", url, "--out", str(found.steps), "--quick")
        assert "2 rounds of load done" in said.stderr
        # Figures of a server that refuses every proposal are no acceptance.
        refused = eval_command("acceptance", "--url", url, "--raw", "demo-code", "--limit", "1", status=1)
        assert "simulates an accepted length of 1.0" in refused.stderr
    logits = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    kept = (torch.rand(1000, 7) < (logits / 3).sigmoid()).int().cumprod(1).sum(1)
    Samples(logits, kept).save(folder / "collected.0.pt")
    eval_command("calibrate", "--shards", str(folder / "collected.*.pt"), "--temperatures", str(found.temperatures))
    return found


@pytest.fixture(scope="module")
def server(trained_pair: DemoPair, files: Files, logs: Path) -> Iterator[Server]:
    """Confidence scheduling by the two files."""
    flags = ["--speculative-dspark-sps-table-path", str(files.steps)]
    flags += ["--speculative-dspark-confidence-sts-path", str(files.temperatures)]
    environment = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    with serve(trained_pair, logs / "scheduled.log", *flags, environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def oracle(trained_pair: DemoPair) -> list[tuple[list[int], list[int]]]:
    """What the torch loop answers to each prompt, and how many proposals each of its rounds kept."""
    from tokenizers import Tokenizer

    target = Target(trained_pair.target)
    tokenizer, draft = (
        Tokenizer.from_file(str(trained_pair.target / "tokenizer.json")),
        Draft(trained_pair.draft, target),
    )
    results = [
        speculative_greedy(target, draft, tokenizer.encode(text).ids, NEW_TOKENS) for text in code_prompts(COUNT)
    ]
    return [(result.tokens, [accepted - 1 for accepted in result.accepted_per_round]) for result in results]


def test_the_step_costs_are_a_real_servers(files: Files) -> None:
    """Blocks of 8 tokens at 1 and at 4 requests."""
    table = json.loads(files.steps.read_text())
    assert table["sample_batch_tokens"] == [8, 32]
    assert all(0 < rate < 10_000 for rate in table["sample_steps_per_sec"])


def test_the_server_reads_both_files(server: Server, files: Files) -> None:
    """In its own words; a file that is not read falls back to defaults and says nothing."""
    log = server.log.read_text(errors="replace")
    assert f"DSpark STS calibration loaded from {files.temperatures} (gamma=7)" in log
    assert f"sps_table={files.steps}" in log
    assert "SPS table is uninitialized" not in log


def test_scheduled_answers_are_the_targets_own(server: Server, oracle: list[tuple[list[int], list[int]]]) -> None:
    """Whatever the two files make the planner leave out, and with 16 requests under way."""
    answers: list[Answer] = ask_all(server, code_prompts(COUNT), sampling_params={"ignore_eos": True})
    assert [answer.tokens for answer in answers] == [tokens for tokens, _ in oracle]


def test_counts_by_position_are_the_oracles(
    server: Server, oracle: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    """The planner told to verify everything, the command's counts equal the torch loop's, position by position."""
    forced = server.post("/set_internal_state", {"server_args": {"dspark_force_budget_frac": 1.0}})
    assert forced == [True]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in code_prompts(COUNT)))
    stem = tmp_path / "result"
    asking = ["--raw", "--ignore-end", "--new-tokens", str(NEW_TOKENS), "--out", str(stem), "--no-picture"]
    url = f"http://127.0.0.1:{server.port}"
    said = eval_command("acceptance", "--url", url, f"own={file}", *asking)
    (found,) = json.loads(stem.with_suffix(".json").read_text())["sets"]
    kept = [count for _, rounds in oracle for count in rounds]
    assert found["rounds_by_kept"] == [kept.count(k) for k in range(8)]
    assert found["accepted_length"] == pytest.approx(1 + sum(kept) / len(kept))
    assert (found["prompts"], found["new_tokens"]) == (COUNT, COUNT * NEW_TOKENS)
    # All but proposals whose survival is next to nothing.
    assert found["verified_length"] > 7.9
    assert f"**{found['accepted_length']:.2f}**" in said.stdout and f"{COUNT} of {COUNT} prompts" in said.stderr


def test_chat_prompts(server: Server, tmp_path: Path) -> None:
    """The route that real models are measured by, and the counts that come back through it."""
    stem = tmp_path / "chat"
    url = f"http://127.0.0.1:{server.port}"
    asking = ["--limit", "3", "--new-tokens", "16", "--ignore-end", "--out", str(stem), "--no-picture"]
    eval_command("acceptance", "--url", url, "demo-code", *asking)
    (found,) = json.loads(stem.with_suffix(".json").read_text())["sets"]
    assert found["new_tokens"] == 48 and found["rounds"] > 0


@pytest.mark.nightly
def test_a_server_collects_what_the_reference_sees(trained_pair: DemoPair, logs: Path, tmp_path: Path) -> None:
    """Asked one prompt after the other, the server's files hold the reference's rounds: the same confidences and
    outcomes, row by row. A head fed other features, or outcomes read from other rows, would calibrate something else.
    The mode matters: in static SGLang builds no confidence head, and collects nothing without a word."""
    stem = tmp_path / "collected" / "demo"
    environment = {"SGLANG_RAGGED_VERIFY_MODE": "cap-accept", "SGLANG_DSPARK_STS_COLLECT_PATH": str(stem)}
    asking = ["--raw", "--ignore-end", "--limit", "16", "--new-tokens", "128", "demo-code"]
    with serve(trained_pair, logs / "collecting.log", environment=environment) as server:
        eval_command("acceptance", "--url", f"http://127.0.0.1:{server.port}", "--at-once", "1", *asking)
    settings = Settings(max_new_tokens=128, chat=False, ignore_end=True)
    reference = OracleJudge(trained_pair.target, trained_pair.draft, settings)
    answers = [reference.samples(text) for text in code_prompts(16)]
    expected = join(answers)
    ends = set(itertools.accumulate(len(answer) for answer in answers))
    found = read_shards(f"{stem}.*.pt")
    assert len(found) >= 256

    def same(row: int, place: int) -> bool:
        return torch.allclose(found.logits[row], expected.logits[place], atol=1e-3, rtol=1e-3)

    # The server warms itself up with a request of its own.
    first = next(row for row in range(64) if same(row, 0))
    place = 0
    for row in range(first, len(found)):
        if place in ends and not same(row, place):
            # With overlap scheduling a step is under way when its answer turns out to have ended: one round of no one.
            ends.remove(place)
            continue
        torch.testing.assert_close(found.logits[row], expected.logits[place], atol=1e-3, rtol=1e-3)
        assert found.kept[row] == expected.kept[place]
        place += 1
    assert place > 200
    out = tmp_path / "sts.json"
    said = eval_command("calibrate", "--shards", f"{stem}.*.pt", "--temperatures", str(out))
    assert len(json.loads(out.read_text())["temperatures"]) == 7 and "server's collected files" in said.stdout
