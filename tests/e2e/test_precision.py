"""In bf16 the served tokens are the target's own wherever the best token is not a tie.

A bf16 target does not agree with itself: the same prefix as one prefill or token by token gives logits that differ in
the last bits, and a routed expert or a selected block may flip with them. So every token is judged by the target's own
prefill over the same prefix, and the target's own greedy answers are judged the same way, as the measure of that noise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang_dspark.cli.server import Server
from sglang_dspark.demo import DemoPair
from tests.e2e.serving import AT_ONCE, Answer, accepted_length, ask_all, serve

pytestmark = pytest.mark.e2e

# One step of bf16 at the size of these logits, 16 to 32.
TIE = 0.125


@dataclass(frozen=True)
class Answers:
    """The same prompts without speculation, with the draft's pool in bf16, and with it in fp8."""

    plain: list[Answer]
    wide: list[Answer]
    narrow: list[Answer]
    # Of each, how far the target's best token leads the chosen one.
    leads: dict[str, list[float]]


@pytest.fixture(scope="module")
def answers(pair: DemoPair, texts: list[str], logs: Path) -> Answers:
    with serve(pair, logs / "bf16.log", dtype="bfloat16") as server:
        wide = ask_all(server, texts)
    fp8 = ("--speculative-draft-kv-cache-dtype", "fp8_e4m3")
    with serve(pair, logs / "fp8.log", *fp8, dtype="bfloat16") as server:
        narrow = ask_all(server, texts)
    for log in ("bf16.log", "fp8.log"):
        text = (logs / log).read_text(errors="replace")
        assert "context_kv=host" in text and "qk_norm_rope=host" in text, "the shipped kernels did not run"
    with serve(pair, logs / "bf16-plain.log", speculative=False, dtype="bfloat16") as server:
        plain = ask_all(server, texts)
        all_three = {"plain": plain, "wide": wide, "narrow": narrow}
        leads = {name: leads_over_chosen(server, pair, texts, each) for name, each in all_three.items()}
    return Answers(plain, wide, narrow, leads)


@pytest.mark.parametrize("pool", ["wide", "narrow"])
def test_lossless(answers: Answers, pool: str) -> None:
    """Beyond ties, speculation adds no token that the target would not choose (0.2% of 3,072 for the noise's noise).

    With either draft pool: fp8 may change what the draft proposes, never what the target says.
    """
    served = answers.wide if pool == "wide" else answers.narrow
    own, found = answers.leads["plain"], answers.leads[pool]
    assert len(own) == len(found) == sum(len(answer.tokens) for answer in answers.plain)
    noise = sum(lead > TIE for lead in own)
    assert sum(lead > TIE for lead in found) <= noise + 0.002 * len(found)
    same = sum(one.tokens == other.tokens for one, other in zip(answers.plain, served, strict=True))
    assert same > 0.7 * len(served), f"only {same} of {len(served)} answers are the same: more than ties can explain"
    assert accepted_length(served) > 2


def test_an_fp8_pool_costs_little_acceptance(answers: Answers) -> None:
    """Fault 3. Within 3% of bf16; a wrong scale or format would lose acceptance and nothing else."""
    assert accepted_length(answers.narrow) == pytest.approx(accepted_length(answers.wide), rel=0.03)


def leads_over_chosen(server: Server, pair: DemoPair, texts: list[str], answers: list[Answer]) -> list[float]:
    """How far the target's best token leads each chosen one, in log probability, every prefix as one prefill."""
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))

    def leads(text: str, answer: Answer) -> list[float]:
        prompt = tokenizer.encode(text).ids
        body = {
            "input_ids": prompt + answer.tokens,
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": 1,
        }
        meta = server.post("/generate", body)["meta_info"]
        count = len(answer.tokens)
        chosen, best = meta["input_token_logprobs"][-count:], meta["input_top_logprobs"][-count:]
        return [top[0][0] - logprob for (logprob, *_), top in zip(chosen, best, strict=True)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [lead for each in pool.map(leads, texts, answers) for lead in each]
