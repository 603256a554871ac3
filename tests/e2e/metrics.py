"""The server's /metrics, read as Prometheus reads it."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from sglang_dspark.cli.server import Server

# SGLang's own labels, the same on every series of one scheduler.
SHARED_LABELS = {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}


class Scrape:
    """The counters of sglang_dspark in one scrape."""

    def __init__(self, values: Counter) -> None:
        self.values = values

    @classmethod
    def of(cls, server: Server) -> Scrape:
        values: Counter = Counter()
        for family in text_string_to_metric_families(server.get("/metrics").decode()):
            for sample in family.samples:
                if not sample.name.startswith("sglang_dspark:"):
                    continue
                assert SHARED_LABELS <= sample.labels.keys(), sample
                own = frozenset((key, value) for key, value in sample.labels.items() if key not in SHARED_LABELS)
                values[sample.name, own] += sample.value
        return cls(values)

    def __sub__(self, before: Scrape) -> Scrape:
        values = Counter(self.values)
        values.subtract(before.values)
        return Scrape(values)

    def value(self, name: str, **labels: str) -> float:
        """The sum of a counter over all series with these labels."""
        asked = set(labels.items())
        return sum(
            value
            for (found, own), value in self.values.items()
            if found == f"sglang_dspark:{name}_total" and asked <= own
        )

    def by_position(self, name: str, gamma: int) -> list[float]:
        return [self.value(name, position=str(place)) for place in range(1, gamma + 1)]
