"""A LoRA adapter on the target: its answers are the adapted target's, beside requests without it, with one draft."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from sglang_dspark.demo import DemoPair
from tests.e2e.serving import NEW_TOKENS, Answer, accepted_length, ask, serve
from tests.e2e.test_lossless import counted, histogram
from tests.oracle.draft import Draft
from tests.oracle.generate import speculative_greedy
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e

RANK, ALPHA = 4, 8
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
COUNT = 6


def adapter(folder: Path, target: Target) -> Path:
    """An adapter in PEFT's format in the folder; the same change is made to the oracle's weights."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(target.config["num_hidden_layers"]):
        for module in MODULES:
            name = f"model.layers.{layer}.self_attn.{module}"
            rows, columns = target.weights[f"{name}.weight"].shape
            a = torch.randn(RANK, columns, generator=generator) / columns**0.5
            b = torch.randn(rows, RANK, generator=generator) * 0.5
            tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
            target.weights[f"{name}.weight"] += (ALPHA / RANK) * b @ a
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": list(MODULES)}))
    return folder


def test_lora_on_the_target(
    pair: DemoPair, texts: list[str], plain_answers: list[Answer], logs: Path, tmp_path: Path
) -> None:
    """Half of a batch with the adapter: both halves as their own targets say, and rounds as in the oracle.

    The draft reads the adapted target's hidden states, and verification the adapted target's logits.
    """
    target = Target(pair.target)
    path = adapter(tmp_path / "adapter", target)
    flags = ("--enable-lora", "--lora-paths", f"tuned={path}", "--lora-backend", "torch_native")
    with serve(pair, logs / "lora.log", *flags) as server:
        with ThreadPoolExecutor(2 * COUNT) as pool:
            bodies = ({}, {"lora_path": "tuned"})
            asked = [[pool.submit(ask, server, text, **body) for body in bodies] for text in texts[:COUNT]]
            base, tuned = zip(*[[each.result() for each in both] for both in asked], strict=True)
    assert [answer.tokens for answer in base] == [answer.tokens for answer in plain_answers[:COUNT]]
    assert accepted_length(base) > 2

    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    draft = Draft(pair.draft, target)
    expected = [speculative_greedy(target, draft, tokenizer.encode(text).ids, NEW_TOKENS) for text in texts[:COUNT]]
    # The oracle knows no end of the answer.
    for answer, result in zip(tuned, expected, strict=True):
        assert answer.tokens == result.tokens[: len(answer.tokens)]
    assert sum(one.tokens != other.tokens for one, other in zip(base, tuned, strict=True)) > COUNT / 2
    whole = [(a, r) for a, r in zip(tuned, expected, strict=True) if len(a.tokens) == NEW_TOKENS]
    assert sum(histogram(a) == counted(r.accepted_per_round) for a, r in whole) >= len(whole) - 1 > 0
