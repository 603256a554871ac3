"""Times what counting acceptance adds to a decode step on the scheduler's thread, without a server or a model.

    python scripts/measure_counting.py

Printed are microseconds a step, gamma 7, by requests in the batch: the step counted; and with it its share of the
sampled confidences and of the exports to prometheus_client's mapped files (as SGLang has it, one file a process). Left
out is what SGLang does anyway: the copies to the host that the numbers come with.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

GAMMA = 7
BATCHES = (1, 16, 64, 256)
STEPS = 4096  # a multiple of what lies between two exports of the calibration
CONFIDENCE_EVERY = 8


def microseconds(batch: int, *, exporting: bool) -> float:
    """A step's mean time over STEPS steps."""
    import torch
    from prometheus_client import CollectorRegistry, Counter

    from sglang_dspark.serving.acceptance.metrics import Metrics
    from sglang_dspark.serving.acceptance.monitor import Monitor
    from sglang_dspark.serving.acceptance.rounds import StepFacts
    from tests.unit.serving.acceptance.steps import Request, result

    def counter(name: str, documentation: str, labelnames: list[str]) -> Counter:
        return Counter(name, documentation, labelnames=labelnames, registry=CollectorRegistry())

    collector = SimpleNamespace(labels={"model_name": "m3", "tp_rank": "0"}, _counter_cls=counter)
    metrics = Metrics(collector, GAMMA) if exporting else None
    monitor = Monitor(GAMMA, compact=False, metrics=metrics, speaks=False)
    reqs = [Request() for _ in range(batch)]
    generator = torch.Generator().manual_seed(0)
    results = [result(each) for each in torch.randint(0, GAMMA + 1, (64, batch), generator=generator).tolist()]
    confidence = torch.rand(batch, GAMMA, generator=generator)
    began = time.perf_counter()
    for step in range(STEPS):
        counted = [not (req.is_retracted or req.finished()) for req in reqs]
        sampled = exporting and step % CONFIDENCE_EVERY == 0
        facts = StepFacts(confidence=confidence if sampled else None)
        monitor.observe(results[step % len(results)], reqs, counted, facts)
        monitor.before_answers(reqs)
    return (time.perf_counter() - began) / STEPS * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Both are read when SGLang and prometheus_client are imported.
        os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "PROMETHEUS_MULTIPROC_DIR": folder}
        from sglang_dspark.serving.cpu import standins

        standins.install()
        print("requests | counted, us a step | and exported, us a step")
        for batch in BATCHES:
            counted, exported = (microseconds(batch, exporting=exporting) for exporting in (False, True))
            print(f"{batch:8d} | {counted:18.1f} | {exported:23.1f}")


if __name__ == "__main__":
    main()
