"""Who does a shape's work, and whether all of them do the same work on the very inputs that are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sglang_dspark.bench.kernels.law import FEWEST, tolerance_of
from sglang_dspark.bench.kernels.op import Call, OpBench, UpstreamMissing, Work, Written, bits
from sglang_dspark.ops.dispatch import NoBackend
from sglang_dspark.platforms import Platform


def writers(
    bench: OpBench, platform: Platform, work: Work, backends: Sequence[str]
) -> tuple[dict[str, Call], dict[str, str]]:
    """Every writer that covers the work, ours first, and why the others do not."""
    calls: dict[str, Call] = {}
    refused: dict[str, str] = {}
    for name in backends:
        try:
            calls[name] = bench.bind(platform, work, name)
        except NoBackend as reason:
            refused[name] = _short(str(reason), name)
    for baseline in bench.baselines:
        try:
            calls[baseline.name] = baseline.bind(platform, work.spec, work.tables)
        except UpstreamMissing as reason:
            refused[baseline.name] = str(reason)
    return calls, refused


def _short(message: str, name: str) -> str:
    # The refusals, without the spec that they are about.
    _, _, refusals = message.partition(f"refused: {name}: ")
    return refusals.partition(". What to do")[0] or message


def disagreement(bench: OpBench, work: Work, calls: Mapping[str, Call], shares: Mapping[str, float]) -> dict[str, str]:
    """Which writers leave other bytes than the first one, on the very inputs that are timed, and how.

    ``shares`` are those of the elements that SGLang's ways may differ in; they are held to what they store alone.
    """
    found: dict[str, str] = {}
    given = work.sets[0]
    written = bench.written(work, given)
    expected: list[torch.Tensor] | None = None
    first = tolerance_of(next(iter(calls), ""))
    for name, call in calls.items():
        given.restore()
        for one in written:
            if one.by_slot:
                bits(one.tensor).zero_()
        try:
            call(*given.rows)
        except Exception as error:  # another SGLang may have other parameters, and its own ways to fail
            if name not in shares:
                raise
            found[name] = f"it raises {type(error).__name__}: {error}"
            continue
        values = [_bits_at(one, given.slots) for one in written]
        if expected is None:
            expected = values
            continue
        for one, value, wanted in zip(written, values, expected, strict=True):
            if name in shares and not one.by_slot:
                continue
            own = tolerance_of(name)
            share = max(shares.get(name, own.share), first.share)
            rounds = name in shares or own.fp8_values_round or first.fp8_values_round
            if reason := _differs(one, value, wanted, share, rounds):
                found.setdefault(name, reason)
    given.restore()
    return found


def _differs(one: Written, value: torch.Tensor, wanted: torch.Tensor, share: float, fp8_values_round: bool) -> str:
    count = int((value != wanted).sum())
    if not one.rounds and not (fp8_values_round and one.tensor.itemsize == 1):
        return f"{one.name} differs" if count else ""
    limit = max(FEWEST, int(value.numel() * share))
    return f"{one.name}: {count} of {value.numel()} elements differ, at most {limit} may" if count > limit else ""


def _bits_at(one: Written, slots: torch.Tensor) -> torch.Tensor:
    return bits(one.tensor)[slots] if one.by_slot else bits(one.tensor).clone()
