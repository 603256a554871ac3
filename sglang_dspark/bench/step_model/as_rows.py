"""The model's answers as benchmark rows: one for each stage of each path, one for its total. None is measured."""

from __future__ import annotations

from sglang_dspark.bench.rows import MODELLED, Row, Run

from . import model
from .case import Case
from .model import PLAIN, Step
from .prices import Prices

BENCHMARK = "step_model"
TOTAL = "total"


def rows_of(case: Case, prices: Prices, accepted_length: float, run: Run) -> list[Row]:
    """Every row of one case."""
    steps = {path: model.step(case, prices, path) for path in model.PATHS}
    how: dict[str, int | str | bool] = {"basis": MODELLED, "device": prices.device}
    how |= {f"price_of_{name}": source for name, source in prices.sources.items()}
    how |= {"block_overlap": f"{case.block_overlap:g}", "expert_overlap": f"{case.expert_overlap:g}"}
    facts = _facts(case, accepted_length)
    preset = f"{case.target.name}, TP {case.ranks}"
    found = []
    for path, step in steps.items():
        for priced in step.stages:
            stage = priced.stage
            figures = {
                "launches_count": float(stage.launches),
                "moved_bytes": stage.moved_bytes,
                "operations_count": stage.operations,
                "wire_bytes": stage.wire_bytes,
                "collectives_count": float(stage.collectives),
                "time_us": priced.us,
            }
            of_stage = {**facts, "part": stage.part, "stage": stage.name}
            measured = {"price_is_measured": priced.measured}
            found.append(Row(BENCHMARK, path, preset, of_stage, {**how, **measured}, figures, False, run))
        figures = _totals(case, steps[PLAIN], step, accepted_length)
        found.append(Row(BENCHMARK, path, preset, {**facts, "part": TOTAL, "stage": TOTAL}, how, figures, False, run))
    return found


def _facts(case: Case, accepted_length: float) -> dict[str, int | str]:
    return {
        "tp": case.ranks,
        "batch": case.batch,
        "context": case.context,
        "gamma": case.draft.gamma,
        "accepted_length": f"{accepted_length:g}",
        "weights": case.weights,
        "kv": case.kv,
        "draft_kv": case.draft_kv,
        "draft_layers": case.draft.layers,
        "draft_features": case.draft.features,
        "draft_mlp_width": case.draft.mlp_width,
        "markov_rank": case.draft.markov_rank,
    }


def _totals(case: Case, plain: Step, step: Step, accepted_length: float) -> dict[str, float]:
    figures = {
        "launches_count": float(step.launches),
        "moved_bytes": step.moved_bytes,
        "time_us": step.us,
        "tokens_per_s": case.batch * (1.0 if step.path == PLAIN else accepted_length) / step.us * 1e6,
    }
    if step.path != PLAIN:
        figures["break_even_tokens"] = model.break_even(plain, step)
    return figures
