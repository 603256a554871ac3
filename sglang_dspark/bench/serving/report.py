"""Serving rows as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sglang_dspark.bench.markdown import table
from sglang_dspark.bench.rows import Row

from .run import PLAIN

NOT_A_SPEED = "From a CPU: this shows that the benchmark works. It is not a performance figure."
HEAD = (
    "server",
    "at once",
    "tokens/s",
    f"/ {PLAIN}",
    "requests/s",
    "first token, ms: p50 (p90, p99)",
    "per token, ms: p50 (p90, p99)",
    "whole answer, ms: p50 (p90, p99)",
    "accepted length",
    "answers equal under load",
)


def markdown(rows: list[Row]) -> Iterator[str]:
    """The parts of one run's report: what was asked, the table, what was compared."""
    first = rows[0]
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in first.case.items() if key not in VARYING)
    yield f"### {first.preset}: {facts}"
    if first.run.device["platform"] == "cpu":
        yield f"**{NOT_A_SPEED}**"
    if any(row.how["wrong_text"] for row in rows):
        yield (
            "*Forced*: SGLang was told what length to accept (`SGLANG_SIMULATE_ACC_LEN`); the text is wrong, and only "
            "the times mean something."
        )
    yield table(HEAD, [_line(row, _plain(rows, row)) for row in rows])
    yield "\n".join(f"- {row.subject}: {row.how['parity']}. `{row.how['server']}`" for row in _one_a_subject(rows))


VARYING = ("concurrency", "requests")


def _line(row: Row, plain: Row | None) -> list[str]:
    figures = row.figures
    ratio = figures["output_tokens_per_s"] / plain.figures["output_tokens_per_s"] if plain else None
    return [
        row.subject,
        str(row.case["concurrency"]),
        f"{figures['output_tokens_per_s']:.1f}",
        f"{ratio:.2f}" if ratio else "",
        f"{figures['requests_per_s']:.2f}",
        *(_spread(row, what) for what in ("ttft", "tpot", "e2e")),
        _optional(figures.get("accepted_length_tokens"), "{:.2f}"),
        _optional(figures.get("equal_answers_share"), "{:.0%}"),
    ]


def _spread(row: Row, what: str) -> str:
    p50, p90, p99 = (row.figures[f"{what}_{part}_ms"] for part in ("p50", "p90", "p99"))
    return f"{_ms(p50)} ({_ms(p90)}, {_ms(p99)})"


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _plain(rows: Iterable[Row], row: Row) -> Row | None:
    """The row without speculation at the same concurrency."""
    same = (other for other in rows if other.subject == PLAIN and other.case == row.case)
    return next(same, None) if row.subject != PLAIN else None


def _one_a_subject(rows: Iterable[Row]) -> list[Row]:
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row.subject, row)
    return list(found.values())
