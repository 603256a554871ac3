"""The model's rows, tables and picture."""

from __future__ import annotations

from dataclasses import replace

from sglang_dspark.bench import report, rows
from sglang_dspark.bench.step_model import as_rows, picture, prices
from sglang_dspark.bench.step_model.model import OURS, PATHS, PLAIN

from ..test_report import cells
from ..test_rows import RUN
from .test_model import M3

MI300X = prices.stated("MI300X")


def rows_of(*batches: int, **changes) -> list[rows.Row]:
    asked = replace(M3, **changes)
    return [row for batch in batches for row in as_rows.rows_of(replace(asked, batch=batch), MI300X, 3.5, RUN)]


def test_stages_add_up_to_their_total():
    found = rows_of(8)
    for path in PATHS:
        own = [row for row in found if row.subject == path]
        (total,) = (row for row in own if row.case["stage"] == as_rows.TOTAL)
        stages = [row for row in own if row is not total]
        for figure in ("time_us", "moved_bytes"):
            assert (
                abs(sum(row.figures[figure] for row in stages) - total.figures[figure]) < 1e-6 * total.figures[figure]
            )
        collectives = sum(row.figures["collectives_count"] + row.figures["launches_count"] for row in stages)
        assert collectives == total.figures["launches_count"]
    assert not any(row.measured for row in found) and {row.how["basis"] for row in found} == {rows.MODELLED}


def test_tokens_a_second_are_those_of_the_accepted_length():
    totals = {row.subject: row for row in rows_of(8) if row.case["stage"] == as_rows.TOTAL}
    plain, ours = totals[PLAIN].figures, totals[OURS].figures
    assert plain["tokens_per_s"] == 8 / plain["time_us"] * 1e6
    assert ours["tokens_per_s"] == 8 * 3.5 / ours["time_us"] * 1e6
    assert ours["break_even_tokens"] == ours["time_us"] / plain["time_us"]


def test_the_tables():
    text = report.markdown(rows_of(1, 8, draft_kv="fp8"))
    assert "## Not measured" in text and "**A model, not a measurement**" in text and "Measured on" not in text
    assert "- memory: stated 5.3 TB/s, 80% of it assumed reached" in text
    summary = cells(text, "| 8 |")
    totals = {row.subject: row.figures for row in rows_of(8, draft_kv="fp8") if row.case["stage"] == as_rows.TOTAL}
    assert (
        summary[1] == f"{totals[PLAIN]['time_us'] / 1e3:.2f}"
        and summary[5] == f"{totals[OURS]['break_even_tokens']:.2f}"
    )
    # Layer by layer SGLang launches 5 x (1 + 5) for the context where we launch 2, and 4 a layer where we launch 1.
    assert summary[-1] == str(5 * 6 - 2 + 5 * 3)
    assert "At batch 1 a round must yield more than" in text
    assert cells(text, "| draft block | q/k norm, rope, KV store ")[5:7] == ["20", "5"]


def test_where_nothing_can_win():
    """Where a round costs more steps than it may yield tokens."""
    found = [
        replace(row, figures={**row.figures, "break_even_tokens": 9.0}) if "break_even_tokens" in row.figures else row
        for row in rows_of(1)
    ]
    assert (
        "At batch 1 speculation cannot win: a round costs as much as 9.00 steps, and yields at most 8"
        in report.markdown(found)
    )


def test_measured_prices_are_marked():
    op_us = {("context_kv", OURS): ((1, 5.0), (1000, 6.0))}
    text = report.markdown(as_rows.rows_of(M3, replace(MI300X, op_us=op_us), 3.5, RUN))
    assert cells(text, "| context | context K/V write ")[-1] == "5.1*"


def test_the_picture(monkeypatch, tmp_path):
    from matplotlib.text import Text

    drawn = []
    monkeypatch.setattr(picture, "save", lambda figure, path: drawn.append(figure))
    picture.draw(rows_of(1, 8, 64), tmp_path / "model.png")
    texts = [text.get_text() for text in drawn[0].findobj(Text)]
    assert "modelled, not measured" in texts and any(text.startswith("MI300X, MiniMax-M3, TP 8") for text in texts)
    assert "tokens a round must yield to win" in texts and "ms at batch 1" in texts
