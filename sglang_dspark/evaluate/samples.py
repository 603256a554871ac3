"""Confidences with their outcomes, as the fit of temperatures needs them: from the reference, or collected by a server.

A server collects them where `SGLANG_DSPARK_STS_COLLECT_PATH=STEM` is set: every 256 verify steps it writes a file
STEM.<number>.pt with "logits" and "prefix_mask", [N, gamma] each (SGLang 0.5.23, dspark_sts.StsDataRecorder). Steps
after the last full 256 go missing. The mode must be `SGLANG_RAGGED_VERIFY_MODE=cap-accept`: in the default, static,
SGLang builds no confidence head and writes nothing, and compact packs the rows that the outcomes are read from. The
outcomes are those of greedy decoding, so serve at temperature 0 while it collects.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


class SamplesError(ValueError):
    """Collected files that cannot be used."""


@dataclass(frozen=True)
class Samples:
    """N verify rounds: what the confidence head said of each proposal, and how many were kept."""

    logits: torch.Tensor  # [N, gamma] fp32, of the chance that a proposal is kept where all before it are
    kept: torch.Tensor  # [N] int64, 0 to gamma

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def gamma(self) -> int:
        """Proposals a round."""
        return self.logits.shape[1]

    @property
    def outcomes(self) -> torch.Tensor:  # [N, gamma] fp32
        """1 where a proposal was kept, which means with all before it."""
        return (torch.arange(self.gamma) < self.kept.unsqueeze(1)).float()

    def save(self, path: Path) -> None:
        """Write a file as a server does."""
        torch.save({"logits": self.logits, "prefix_mask": self.outcomes}, path)


def join(parts: Sequence[Samples]) -> Samples:
    """All rounds of all parts, in order."""
    return Samples(torch.cat([part.logits for part in parts]), torch.cat([part.kept for part in parts]))


def read_shards(pattern: str) -> Samples:
    """The rounds of all files that match, in the order in which a server wrote them.

    Raises:
        SamplesError: no file matches, or one is not what a server writes.
    """
    paths = sorted(glob.glob(pattern), key=lambda path: (_number(path), path))
    if not paths:
        raise SamplesError(
            f"asked for collected confidences in {pattern}, found no such file. A server started with "
            "SGLANG_RAGGED_VERIFY_MODE=cap-accept SGLANG_DSPARK_STS_COLLECT_PATH=STEM writes STEM.0.pt after "
            "256 verify steps: let it answer more"
        )
    parts = [_read(Path(path)) for path in paths]
    if len(widths := {part.gamma for part in parts}) > 1:
        raise SamplesError(
            f"asked for files of one block size, found {sorted(widths)} in {pattern}: name one run's files"
        )
    return join(parts)


def _number(path: str) -> int:
    # STEM.10.pt follows STEM.9.pt, which no sorting of names gives.
    number = Path(path).name.split(".")[-2:][0]
    return int(number) if number.isdigit() else 0


def _read(path: Path) -> Samples:
    try:
        table = torch.load(path, map_location="cpu", weights_only=True)
        logits, outcomes = table["logits"].float(), table["prefix_mask"].float()
    except Exception as error:  # torch.load raises whatever its unpickler meets
        raise SamplesError(f"{path}: not a file of collected confidences ({type(error).__name__}: {error})") from None
    kept = outcomes.sum(1).long()
    samples = Samples(logits, kept)
    if logits.ndim != 2 or logits.shape != outcomes.shape or not torch.equal(samples.outcomes, outcomes):
        raise SamplesError(
            f"{path}: asked for logits and prefix_mask of one shape [N, gamma], ones before zeros in each row; found "
            f"{list(logits.shape)} and {list(outcomes.shape)}"
        )
    if not torch.isfinite(logits).all():
        raise SamplesError(f"{path}: asked for finite logits, found nan or inf: the draft's weights are damaged")
    return samples
