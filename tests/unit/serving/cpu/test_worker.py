"""The worker's one change for the CPU: sequence lengths whose stream bookkeeping does nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.serving.cpu.worker import CpuDSparkWorker
from sglang_dspark.serving.worker import DSparkWorker


def forward_decode(monkeypatch, batch: SimpleNamespace) -> tuple:
    seen = []
    monkeypatch.setattr(DSparkWorker, "_forward_decode", lambda self, *args: seen.append(args) or "result")
    assert CpuDSparkWorker._forward_decode(object.__new__(CpuDSparkWorker), batch, "publish", "barrier", "plan") == (
        "result"
    )
    return seen[0]


def batch_of(lengths: torch.Tensor | None, idle: bool = False) -> SimpleNamespace:
    return SimpleNamespace(seq_lens=lengths, forward_mode=SimpleNamespace(is_idle=lambda: idle))


def test_lengths_can_be_recorded_on_a_stream(monkeypatch) -> None:
    """torch raises for a CPU stream, in every decode step."""
    lengths = torch.tensor([3, 5])
    with pytest.raises((RuntimeError, TypeError)):
        lengths.record_stream(torch.Stream("cpu"))
    batch = batch_of(lengths)
    assert forward_decode(monkeypatch, batch) == (batch, "publish", "barrier", "plan")
    batch.seq_lens.record_stream(object())
    # The same storage: SGLang advances the lengths in place.
    assert batch.seq_lens.data_ptr() == lengths.data_ptr()
    batch.seq_lens.add_(1)
    assert lengths.tolist() == [4, 6]


def test_what_is_computed_from_the_lengths_is_right(monkeypatch) -> None:
    """A tensor subclass may change what operations return."""
    batch = batch_of(torch.tensor([3, 5]))
    forward_decode(monkeypatch, batch)
    assert (batch.seq_lens + 1).tolist() == [4, 6]
    assert batch.seq_lens.sum().item() == 8
    assert batch.seq_lens.tolist() == [3, 5]
    assert torch.cat([batch.seq_lens, torch.tensor([9])]).tolist() == [3, 5, 9]


@pytest.mark.parametrize(("lengths", "idle"), [(None, False), (torch.tensor([1]), True)])
def test_an_idle_batch_is_left_alone(monkeypatch, lengths, idle) -> None:
    """An idle batch may have no lengths at all."""
    batch = batch_of(lengths, idle)
    forward_decode(monkeypatch, batch)
    assert batch.seq_lens is lengths
