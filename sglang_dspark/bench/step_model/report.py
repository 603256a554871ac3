"""The model's rows as Markdown: what follows, by batch, and how it was counted, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sglang_dspark.bench.markdown import table
from sglang_dspark.bench.rows import Row

from .as_rows import TOTAL
from .draft_stages import OURS, SGLANG
from .model import PLAIN

A_MODEL = "**A model, not a measurement**: bytes, operations and launches are counted, and each has one price."
SUMMARY_HEAD = (
    "batch",
    "no speculation, ms a step",
    "SGLang, ms a round",
    "ours, ms a round",
    "break-even length, SGLang",
    "break-even length, ours",
    "speed at the accepted length, ours",
    "our ops save, us",
    "and launches",
)
STAGE_HEAD = (
    "part",
    "stage",
    "no speculation: launches",
    "MB",
    "us",
    "round: launches, SGLang",
    "ours",
    "MB, ours",
    "Gflop",
    "us, SGLang",
    "us, ours",
)


def markdown(rows: list[Row]) -> Iterator[str]:
    """The parts of a report: each question with its answers by batch, and the stages of its smallest batch."""
    questions: dict[str, list[Row]] = {}
    for row in rows:
        questions.setdefault(question(row), []).append(row)
    for asked, of_question in questions.items():
        yield f"### Step-time model: {asked}"
        yield A_MODEL
        yield "\n".join(f"- {line}" for line in _assumptions(of_question[0]))
        batches = sorted({int(row.case["batch"]) for row in of_question})
        yield table(SUMMARY_HEAD, [_summary(_of_batch(of_question, batch)) for batch in batches])
        first = _of_batch(of_question, batches[0])
        yield _conclusion(first)
        yield f"Stage by stage at batch {batches[0]}, one rank (`+ n` are collectives, `*` a measured price):"
        yield table(STAGE_HEAD, _stage_lines(first))


def question(row: Row) -> str:
    """What was asked, but for the batch: rows with the same question make one table and one picture."""
    case = row.case
    return (
        f"{row.preset} on {row.how['device']}, weights {case['weights']}, KV {case['kv']}, draft's KV "
        f"{case['draft_kv']}, context {case['context']}, gamma {case['gamma']}, accepted length "
        f"{case['accepted_length']}"
    )


def _assumptions(row: Row) -> Iterator[str]:
    case = row.case
    for name, source in row.how.items():
        if name.startswith("price_of_"):
            yield f"{name.removeprefix('price_of_')}: {source}"
    yield (
        f"draft: {case['draft_layers']} layers, {case['draft_features']} features, MLP width "
        f"{case['draft_mlp_width']}, Markov rank {case['markov_rank']}"
    )
    yield (
        f"tokens of one window choose the same experts to {float(row.how['expert_overlap']):.0%} and the same key "
        f"blocks to {float(row.how['block_overlap']):.0%}"
    )


def _of_batch(rows: Iterable[Row], batch: int) -> list[Row]:
    return [row for row in rows if row.case["batch"] == batch]


def _totals(rows: Iterable[Row]) -> dict[str, Row]:
    return {row.subject: row for row in rows if row.case["stage"] == TOTAL}


def _summary(rows: list[Row]) -> list[str]:
    totals = _totals(rows)
    plain, sglang, ours = (totals[path].figures for path in (PLAIN, SGLANG, OURS))
    return [
        str(rows[0].case["batch"]),
        *(f"{figures['time_us'] / 1e3:.2f}" for figures in (plain, sglang, ours)),
        *(f"{figures['break_even_tokens']:.2f}" for figures in (sglang, ours)),
        f"{ours['tokens_per_s'] / plain['tokens_per_s']:.2f}",
        f"{sglang['time_us'] - ours['time_us']:.0f}",
        f"{sglang['launches_count'] - ours['launches_count']:.0f}",
    ]


def _conclusion(rows: list[Row]) -> str:
    totals, case = _totals(rows), rows[0].case
    needed, most = totals[OURS].figures["break_even_tokens"], int(case["gamma"]) + 1
    if needed >= most:
        return (
            f"At batch {case['batch']} speculation cannot win: a round costs as much as {needed:.2f} steps, and yields "
            f"at most {most} tokens."
        )
    return (
        f"At batch {case['batch']} a round must yield more than {needed:.2f} tokens to win, the bonus token included "
        f"(at most {most}; SGLang's own path: {totals[SGLANG].figures['break_even_tokens']:.2f})."
    )


def _stage_lines(rows: list[Row]) -> list[list[str]]:
    stages: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        stages.setdefault((str(row.case["part"]), str(row.case["stage"])), {})[row.subject] = row
    # The totals come last, whatever path they were met on first.
    ordered = sorted(stages.items(), key=lambda item: item[0][1] == TOTAL)
    return [_stage_line(part, name, of_stage) for (part, name), of_stage in ordered]


def _stage_line(part: str, name: str, rows: dict[str, Row]) -> list[str]:
    plain, sglang, ours = (rows.get(path) for path in (PLAIN, SGLANG, OURS))
    operations = ours.figures.get("operations_count") if ours else None
    return [
        part,
        "" if name == part else name,
        _launches(plain),
        _megabytes(plain),
        _us(plain),
        _launches(sglang),
        _launches(ours),
        _megabytes(ours),
        "" if operations is None else f"{operations / 1e9:.2f}",
        _us(sglang),
        _us(ours),
    ]


def _launches(row: Row | None) -> str:
    if row is None:
        return ""
    collectives = row.figures.get("collectives_count", 0)
    return f"{row.figures['launches_count']:.0f}" + (f" + {collectives:.0f}" if collectives else "")


def _megabytes(row: Row | None) -> str:
    return "" if row is None else f"{row.figures['moved_bytes'] / 1e6:.1f}"


def _us(row: Row | None) -> str:
    return "" if row is None else f"{row.figures['time_us']:.1f}" + ("*" if row.how.get("price_is_measured") else "")
