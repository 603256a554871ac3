"""In bf16 the served tokens are the target's own wherever the best token is not a tie.

A bf16 target does not agree with itself: the same prefix as one prefill or token by token gives logits that differ in
the last bits, and a routed expert or a selected block may flip with them. So every token is judged by the target's own
prefill over the same prefix, and the target's own greedy answers are judged the same way, as the measure of that noise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang_dspark.cli.server import Server
from sglang_dspark.demo import DemoPair
from tests.e2e.serving import AT_ONCE, Answer, accepted_length, ask_all, serve

pytestmark = pytest.mark.e2e

# One step of bf16 at the size of these logits, 16 to 32.
TIE = 0.125


def test_bf16(pair: DemoPair, texts: list[str], logs: Path) -> None:
    """Beyond ties, speculation adds no token that the target would not choose (0.2% of 3,072 for the noise's noise)."""
    with serve(pair, logs / "bf16.log", dtype="bfloat16") as server:
        served = ask_all(server, texts)
    with serve(pair, logs / "bf16-plain.log", speculative=False, dtype="bfloat16") as server:
        plain = ask_all(server, texts)
        own = leads_over_chosen(server, pair, texts, plain)
        found = leads_over_chosen(server, pair, texts, served)
    assert len(own) == len(found) == sum(len(answer.tokens) for answer in plain)
    noise = sum(lead > TIE for lead in own)
    assert sum(lead > TIE for lead in found) <= noise + 0.002 * len(found)
    same = sum(one.tokens == other.tokens for one, other in zip(plain, served, strict=True))
    assert same > 0.7 * len(texts), f"only {same} of {len(texts)} answers are the same: more than ties can explain"
    assert accepted_length(served) > 2


def test_fp8_draft_pool(pair: DemoPair, texts: list[str], logs: Path) -> None:
    """The draft's K/V in 8 bits, written by the shipped kernel source: acceptance within 3% of bf16.

    fp8 may change what the draft proposes, never what the target says; a wrong scale or format loses acceptance only.
    """
    flags = ("--speculative-draft-kv-cache-dtype", "fp8_e4m3")
    with serve(pair, logs / "fp8.log", *flags, dtype="bfloat16") as server:
        narrow = ask_all(server, texts)
    with serve(pair, logs / "bf16-again.log", dtype="bfloat16") as server:
        wide = ask_all(server, texts)
    for log in ("fp8.log", "bf16-again.log"):
        assert "context_kv=host" in (logs / log).read_text(errors="replace"), "the shipped kernel did not run"
    assert accepted_length(narrow) == pytest.approx(accepted_length(wide), rel=0.03)
    assert sum(one.tokens == other.tokens for one, other in zip(narrow, wide, strict=True)) > 0.7 * len(texts)


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
