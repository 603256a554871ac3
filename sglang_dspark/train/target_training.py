"""Teaches the demo target to write: next-token prediction on windows of the training text.

Matrix products run in bf16 where the machine is quick at it, weights and sums stay float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import tokenizers
import torch
import torch.nn.functional as F

from sglang_dspark.train.metrics import Sums
from sglang_dspark.train.optimizers import make_optimizers
from sglang_dspark.train.target_model import TextModel


def encode_texts(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], end: int | None) -> torch.Tensor:  # [N] int32
    """All texts in one row, with the end token behind each where there is one."""
    pieces: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        pieces.extend(encoding.ids)
        pieces.extend([] if end is None else [end])
    return torch.tensor(pieces, dtype=torch.int32)


class TargetObjective:
    """Cross entropy of random windows."""

    def __init__(self, model: TextModel, stream: torch.Tensor, batch: int, window: int) -> None:
        """Prepare the optimizers.

        Args:
            model: what learns.
            stream: every training token, [N].
            batch: windows a micro-batch.
            window: tokens a window.
        """
        if stream.numel() <= window + 1:
            raise ValueError(f"asked for windows of {window} tokens, found {stream.numel()} tokens in all: add text")
        self.module = model
        self._stream, self._batch, self._window = stream, batch, window
        self.optimizers: Sequence[torch.optim.Optimizer] = make_optimizers(
            model, "muon", weight_decay=0.01, tables=("embed_tokens", "lm_head")
        )
        digest = hashlib.sha256(stream.numpy().tobytes()).hexdigest()[:16]
        self.identity: Mapping[str, str] = {"text": digest, "windows": f"{batch} of {window}"}

    def loss(self, generator: torch.Generator) -> tuple[torch.Tensor, Sums]:
        """The mean cross entropy over one batch of windows."""
        starts = torch.randint(0, self._stream.numel() - self._window, (self._batch, 1), generator=generator)
        tokens = self._stream[starts + torch.arange(self._window + 1)].long()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.module.logits(self.module(tokens[:, :-1]).last_hidden)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), {}


@torch.no_grad()
def perplexity_nats(model: TextModel, stream: torch.Tensor, window: int, windows: int = 64) -> float:
    """Mean cross entropy of evenly spaced windows of a held-out stream, in nats a token."""
    model.eval()
    starts = torch.linspace(0, stream.numel() - window - 2, windows).long()[:, None]
    total = 0.0
    for rows in starts.split(8):
        tokens = stream[rows + torch.arange(window + 1)].long()
        logits = model.logits(model(tokens[:, :-1]).last_hidden)
        total += float(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) * len(rows))
    return total / windows
