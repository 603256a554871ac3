"""The counters as Prometheus metrics, in SGLang's own registry and with its labels.

SGLang runs prometheus_client in multiprocess mode: each process writes its values to a file and the HTTP server adds
the files up when it is scraped, so a counter made here appears at /metrics by itself. An increment is a write to mapped
memory; they are made when a batch runs out of requests or every few dozen steps, not every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang_dspark.serving.acceptance.calibration import BINS, NOT_A_NUMBER, Cell
from sglang_dspark.serving.acceptance.counters import Counts

PREFIX = "sglang_dspark:"


class Metrics:
    """All counters of docs/observability.md."""

    def __init__(self, collector: Any, gamma: int) -> None:
        """Register the counters.

        Args:
            collector: SGLang's SchedulerMetricsCollector: its labels, and its counter class where an embedding
                application has put another in prometheus_client's place.
            gamma: positions.
        """
        if collector._counter_cls is not None:
            self._class = collector._counter_cls
        else:
            from prometheus_client import Counter

            self._class = Counter
        self._labels = dict(collector.labels)
        rounds = self._counter("rounds", "Verify rounds of requests, by whether the request drafted.", "drafted")
        self._drafted, self._undrafted = (self._bound(rounds, drafted=value) for value in ("yes", "no"))
        steps = self._counter("draft_steps", "Decode steps, by whether the draft model ran.", "ran")
        self._with_draft, self._without_draft = (self._bound(steps, ran=value) for value in ("yes", "no"))
        self._verified = self._bound(self._counter("verified_tokens", "Tokens verified, anchors included."))
        proposed = self._counter("proposed_tokens", "Proposals that the target verified, by position.", "position")
        accepted = self._counter("accepted_tokens", "Proposals accepted, by position.", "position")
        places = range(1, gamma + 1)
        self._proposed = [self._bound(proposed, position=place) for place in places]
        self._accepted = [self._bound(accepted, position=place) for place in places]
        self._changes = self._counter("drafting_changes", "Requests that stopped drafting, probed or resumed.", "to")
        self._alarms = self._counter("alarms", "Warnings raised about the draft.", "alarm")
        cells = ("position", "bin")
        self._survival = self._counter("survival", "Sampled proposals, by predicted survival.", *cells)
        self._predicted = self._counter("survival_predicted", "Sum of their predicted survivals.", *cells)
        self._survived = self._counter("survival_accepted", "How many of them were accepted.", *cells)
        self._cells: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def _counter(self, name: str, documentation: str, *labels: str) -> Any:
        return self._class(f"{PREFIX}{name}_total", documentation, labelnames=[*self._labels, *labels])

    def _bound(self, counter: Any, **labels: Any) -> Any:
        return counter.labels(**self._labels, **labels)

    def export(self, counts: Counts) -> None:
        """Add what was counted since last time."""
        increments = (
            (self._drafted, counts.drafted_rounds),
            (self._undrafted, counts.undrafted_rounds),
            (self._with_draft, counts.steps_with_draft),
            (self._without_draft, counts.steps_without_draft),
            (self._verified, counts.verified_tokens),
            *zip(self._proposed, counts.proposed, strict=True),
            *zip(self._accepted, counts.accepted, strict=True),
        )
        for counter, number in increments:
            if number:
                counter.inc(number)
        for state, number in counts.drafting_changes.items():
            self._bound(self._changes, to=state).inc(number)

    def export_calibration(self, cells: Iterable[Cell]) -> None:
        """Add sampled proposals."""
        for cell in cells:
            survival, predicted, survived = self._cell(cell.position, cell.bin)
            survival.inc(cell.count)
            predicted.inc(cell.predicted)
            survived.inc(cell.accepted)

    def _cell(self, position: int, index: int) -> tuple[Any, Any, Any]:
        """The three counters of a cell, looked up by their labels only once."""
        if (position, index) not in self._cells:
            labels = {"position": position, "bin": bin_name(index)}
            counters = (self._survival, self._predicted, self._survived)
            survival, predicted, survived = (self._bound(counter, **labels) for counter in counters)
            self._cells[position, index] = survival, predicted, survived
        return self._cells[position, index]

    def count_alarm(self, kind: str) -> None:
        """Count a warning."""
        self._bound(self._alarms, alarm=kind).inc()


def bin_name(index: int) -> str:
    """The label of a bin of predicted survival: '0.0-0.1' … '0.9-1.0', or 'nan'."""
    return "nan" if index == NOT_A_NUMBER else f"{index / BINS:.1f}-{(index + 1) / BINS:.1f}"
