"""Tables from rows alone."""

from __future__ import annotations

from dataclasses import replace

from sglang_dspark.bench import report, rows

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
    floor = row(
        measured=False, subject="MI300X", how={"basis": "stated"}, figures={"moved_bytes": 1e6, "floor_us": 0.1886}
    )
    text = report.markdown([floor])
    assert "## Stated, not measured" in text and "Measured on" not in text
    assert cells(text, "| m3-tp4")[-1] == "0.189"


def test_runs_are_kept_apart():
    later = replace(RUN, started="2026-01-03T00:00:00+00:00")
    text = report.markdown([timing("hip", 4), timing("hip", 5, run=later)])
    assert text.index("2026-01-02") < text.index("4.0 (") < text.index("2026-01-03") < text.index("5.0 (")


def test_the_command(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    rows.append(path, timing("hip", 4))
    assert report.main([str(path)]) == 0
    assert "4.0 (3.0 to 5.0)" in capsys.readouterr().out


def test_the_command_without_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert report.main([]) == 1
    assert "no rows" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert report.main([]) == 1
    assert "bad.jsonl:1: expected a row of schema 1" in capsys.readouterr().err
    assert report.main([str(tmp_path / "absent.jsonl")]) == 1
