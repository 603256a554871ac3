"""At temperature 1 the answers are distributed as the target's own, whatever the draft proposes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sglang_dspark.demo import DemoSpec, build
from tests.e2e.serving import serve
from tests.oracle.generate import exact_distribution
from tests.oracle.target import Target

pytestmark = pytest.mark.e2e

DRAWS = 20480
LENGTH = 3  # one token from the prompt's forward pass, then at least one verified block
VOCABULARY = 8
PROMPT = [1, 4, 2, 5, 1, 0, 3, 2]
BATCH = 1024


def total_variation(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    return 0.5 * float((counts / counts.sum() - probabilities).abs().sum())


def noise(probabilities: torch.Tensor, draws: int) -> torch.Tensor:
    """The total variation of 200 perfect samplers with as many draws."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.multinomial(probabilities, 200 * draws, replacement=True, generator=generator).view(200, draws)
    counts = torch.stack([torch.bincount(row, minlength=probabilities.numel()) for row in samples]).double()
    return 0.5 * (counts / draws - probabilities).abs().sum(-1)


def test_distribution_with_a_wrong_draft(tmp_path: Path, logs: Path) -> None:
    """Fault 1. The joint distribution of three tokens over 20,480 draws, the draft proposing from another table.

    Catches accepting with the wrong ratio, a residual that is not p - q, and a bonus token drawn from the draft.
    """
    pair = build(tmp_path, spec=DemoSpec.tiny(VOCABULARY, wrong_draft=True))
    sampling = {"temperature": 1.0, "max_new_tokens": LENGTH, "ignore_eos": True}
    counts = torch.zeros([VOCABULARY] * LENGTH, dtype=torch.float64)
    verified = accepted = 0
    flags = ("--max-running-requests", "256", "--skip-tokenizer-init")
    with serve(pair, logs / "sampling.log", *flags) as server:
        for _ in range(DRAWS // BATCH):
            body = {"input_ids": [PROMPT] * BATCH, "sampling_params": sampling}
            for answer in server.post("/generate", body):
                counts[tuple(answer["output_ids"])] += 1
                verified += answer["meta_info"]["spec_verify_ct"]
                accepted += answer["meta_info"]["spec_num_correct_drafts"]

    exact = exact_distribution(Target(pair.target), PROMPT, LENGTH)
    expected = noise(exact.flatten(), DRAWS)
    limit = float(expected.mean() + 6 * expected.std())
    assert total_variation(counts, exact) < limit
    assert 0 < accepted < 0.9 * verified, "the draft is not wrong enough, or never right: the test shows nothing"
    # The same counts against a distribution that is a little off: the limit is tight enough to notice.
    cooler = exact**1.15 / (exact**1.15).sum()
    assert total_variation(counts, cooler) > limit
