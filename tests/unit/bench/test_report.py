"""Tables from rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.text import Text

from sglang_dspark.bench import report, rows
from sglang_dspark.bench.kernels import picture as kernel_picture

from .made_up import on_cpu, serving_rows, static_rows, timed_rows
from .test_rows import RUN, row

CASE = {"tokens": 8, "kv_heads": 1, "pool_dtype": "bf16"}
SHARES = {"copy_bandwidth_share": 0.5, "same_copy_share": 0.75, "stated_peak_share": 0.25}


def timing(subject: str, p50_us: float, tokens: int = 8, **changes):
    figures = {"p20_us": p50_us - 1, "p50_us": p50_us, "p80_us": p50_us + 1, "moved_bytes": 2e6, **SHARES}
    return row(subject=subject, case={**CASE, "tokens": tokens}, figures=figures, **changes)


def cells(text: str, start: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_table_of_timings():
    """SGLang's own kernel and the copy come last, and the factor is SGLang's time over ours."""
    found = [timing("device_copy", 3), timing("sglang", 8), timing("hip", 4), timing("triton", 5), timing("hip", 6, 48)]
    text = report.markdown(found)
    assert "## Measured on Test Device, 2026-01-02" in text
    assert "gfx942, driver 6.1; `sglang-dspark bench kernels` at commit abc; torch 2.13" in text
    assert "### context_kv, pool dtype bf16, mode graph, cache cold" in text
    assert cells(text, "| preset")[:8] == ["preset", "tokens", "MB moved", "hip", "triton", "device_copy", "sglang",
                                           "of copy bandwidth"]  # fmt: skip
    assert cells(text, "| m3-tp4 | 8 ") == ["m3-tp4", "8", "2", "4.0 (3.0 to 5.0)", "5.0 (4.0 to 6.0)",
                                            "3.0 (2.0 to 4.0)", "8.0 (7.0 to 9.0)", "50%", "75%", "25%",
                                            "2.00"]  # fmt: skip
    assert cells(text, "| m3-tp4 | 48 ")[3:] == ["6.0 (5.0 to 7.0)", "", "", "", "50%", "75%", "25%", ""]


def test_graph_and_eager_are_tables_of_their_own():
    eager = timing("hip", 9, how={"mode": "eager", "cache": "cold", "repetitions": 200})
    text = report.markdown([timing("hip", 4), eager])
    assert "mode graph" in text and "mode eager" in text
    assert text.count("| m3-tp4 |") == 2


def test_trimming_is_said():
    trimmed = timing("hip", 4, how={"mode": "graph", "cache": "cold", "repetitions": 12, "trimmed": True})
    text = report.markdown([trimmed, timing("triton", 4)])
    assert "repetitions a case: 12 to 20, trimmed by the time budget in 1 of 2 cases" in text


def test_the_device_itself():
    facts = {"p20_us": 1.0, "p50_us": 2.0, "p80_us": 3.0}
    copy = row(benchmark="device", subject="device_copy",
               figures={**facts, "moved_bytes": 2e9, "bandwidth_gb_per_s": 4000.0})  # fmt: skip
    text = report.markdown([copy, row(benchmark="device", subject="event_pair", figures=facts)])
    assert "- A copy that moves 2e+03 MB: 4000 GB/s" in text
    assert "nothing between them: 2.0 (1.0 to 3.0) us" in text


def test_arithmetic_is_never_called_measured():
    figures = {"moved_bytes": 1e6, "floor_us": 0.1886}
    floor = row(measured=False, subject="MI300X", how={"basis": "stated"}, figures=figures)
    text = report.markdown([floor])
    assert "## Not measured" in text and "Measured on" not in text
    assert "arithmetic, not measured" in text
    assert cells(text, "| m3-tp4")[-1] == "0.189"


def test_compiled_and_emulated_figures_say_what_they_are():
    case = {"arch": "gfx942", "pool_dtype": "bf16"}
    compiled = row(measured=False, subject="gfx942", case=case, how={"basis": "compiled"},
                   figures={"vector_registers_count": 50, "occupancy_share": 1.0})  # fmt: skip
    emulated = row(measured=False, subject="gfx942", case=case, how={"basis": "emulated"},
                   figures={"row_instructions_count": 28.375, "round_trips_count": 2})  # fmt: skip
    text = report.markdown([compiled, emulated])
    assert "compiled, not run" in text and "emulated, not measured" in text and "## Measured" not in text
    assert cells(text, "| preset | code for | pool | vector registers")[3:] == ["vector registers", "occupancy"]
    lines = [line for line in text.splitlines() if line.startswith("| m3-tp4")]
    assert lines == ["| m3-tp4 | gfx942 | bf16 | 50 | 100% |", "| m3-tp4 | gfx942 | bf16 | 28.4 | 2 |"]


def test_a_cpu_s_times_are_no_performance_figure():
    of_cpu = replace(RUN, device={**RUN.device, "platform": "cpu"})
    assert "It is not a performance figure." in report.markdown([timing("host", 4, run=of_cpu)])
    assert "performance figure" not in report.markdown([timing("hip", 4)])


def test_runs_are_kept_apart():
    later = replace(RUN, started="2026-01-03T00:00:00+00:00")
    text = report.markdown([timing("hip", 4), timing("hip", 5, run=later)])
    assert text.index("2026-01-02") < text.index("4.0 (") < text.index("2026-01-03") < text.index("5.0 (")


def test_a_folder_with_the_page_and_a_picture_of_everything(tmp_path):
    found = [*timed_rows(), *static_rows(), *serving_rows()]
    page, *drawn = report.write(found, tmp_path / "docs")
    text = page.read_text()
    assert text.startswith("# Benchmark results") and "4200 GB/s, the measured copy bandwidth" in text
    names = [path.name.removeprefix("bench-made-up-mi300x-2026-01-02-") for path in drawn]
    assert names == [
        "serving-minimax-m3-tp-8.png",
        "context-kv-bf16-graph-cold.png",
        "context-kv-floors.png",
        "context-kv-instructions.png",
    ]
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG") and f"]({path.name})" in text


def test_rows_alone_make_the_page(tmp_path):
    """What was written, read again, makes the same page: nothing comes from the machine that reports."""
    path = tmp_path / "rows.jsonl"
    found = [*timed_rows(), *serving_rows()]
    for one in found:
        rows.append(path, one)
    assert report.markdown(rows.read([path])) == report.markdown(found)


@pytest.mark.parametrize("cpu", [False, True])
def test_pictures_of_kernels_say_device_units_and_floors(cpu):
    found = on_cpu(timed_rows()) if cpu else timed_rows()
    (name, figure), *others = kernel_picture.pictures(found)
    assert name == "context_kv-bf16-graph-cold" and not others
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert any(found[0].run.device["name"] in text and "context_kv" in text for text in texts)
    assert "its bytes at the measured copy bandwidth (4200 GB/s)" in texts and "a copy as big" in texts
    assert "p50 (us), the band p20 to p80" in texts and texts.count("tokens") == 2
    assert ("CPU: not a performance figure" in texts) == cpu


def test_pictures_of_what_was_not_measured_say_so():
    drawn = dict(kernel_picture.pictures(static_rows()))
    assert sorted(drawn) == ["context_kv-floors", "context_kv-instructions"]
    marks = {name: [text.get_text() for text in figure.findobj(Text)] for name, figure in drawn.items()}
    assert "stated, not measured" in marks["context_kv-floors"]
    assert "emulated, not measured" in marks["context_kv-instructions"] and " 28.5" in marks["context_kv-instructions"]
