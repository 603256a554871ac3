"""Results, requests and collectors as SGLang makes them, as far as the acceptance parts look at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch


class Request:
    """As much of SGLang's Req as is read; `ended` may be changed between steps."""

    def __init__(self, custom_params: Any = None) -> None:
        self.ended = self.is_retracted = False
        self.spec_cap_lens_histogram: list[int] = []
        self.sampling_params = SimpleNamespace(custom_params=custom_params)

    def finished(self) -> bool:
        return self.ended

    def update_spec_cap_lens_histogram(self, cap_len: int) -> None:
        missing = cap_len + 1 - len(self.spec_cap_lens_histogram)
        self.spec_cap_lens_histogram.extend([0] * missing)
        self.spec_cap_lens_histogram[cap_len] += 1


def result(accepted: Sequence[int], caps: Sequence[int] | None = None) -> Any:
    """A resolved decode result."""
    return SimpleNamespace(
        num_correct_drafts_per_req_cpu=list(accepted), cap_lens=None if caps is None else torch.tensor(caps)
    )


class Collector:
    """SGLang's metrics collector with a counter class that keeps its values where a test can read them."""

    def __init__(self, **labels: str) -> None:
        self.labels = labels or {"model_name": "m3", "tp_rank": "0"}
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self.increments = 0
        collector = self

        class Counter:
            def __init__(self, name: str, documentation: str, labelnames: Sequence[str]) -> None:
                self.name, self.labelnames = name, labelnames

            def labels(self, **labels: Any) -> Any:
                assert set(labels) == set(self.labelnames), f"{self.name}: {labels}"
                own = {key: str(value) for key, value in labels.items() if key not in collector.labels}
                key = (self.name, tuple(sorted(own.items())))
                return SimpleNamespace(inc=lambda number=1: collector.add(key, number))

        self._counter_cls = Counter

    def add(self, key: Any, number: float) -> None:
        self.increments += 1
        self.values[key] += number

    def value(self, name: str, **labels: str) -> float:
        return self.values[(f"sglang_dspark:{name}_total", tuple(sorted(labels.items())))]

    def by_position(self, name: str, gamma: int) -> list[float]:
        return [self.value(name, position=str(place)) for place in range(1, gamma + 1)]
