"""Serving rows as a table and a picture."""

from __future__ import annotations

import pytest

from sglang_dspark.bench import report
from sglang_dspark.bench.serving import picture

from ..made_up import on_cpu, serving_rows
from ..test_report import cells


def test_a_line_a_run_with_its_factor():
    text = report.markdown(serving_rows())
    assert "### MiniMax-M3, TP 8: data random ids, input tokens 1024, output tokens 512" in text
    plain, dspark = cells(text, "| no speculation | 8 "), cells(text, "| dspark | 8 ")
    assert plain[3] == "" and plain[8:] == ["", ""]
    assert dspark[2:4] == ["1312.7", "1.90"]
    assert dspark[6] == "5.8 (6.4, 7.5)" and dspark[8:] == ["3.40", "98%"]


def test_forced_acceptance_says_that_its_text_is_wrong():
    text = report.markdown(serving_rows())
    assert "the text is wrong" in text
    honest = [row for row in serving_rows() if not row.how["wrong_text"]]
    assert "the text is wrong" not in report.markdown(honest)


def test_a_cpu_is_no_speed():
    assert "not a performance figure" not in report.markdown(serving_rows())
    assert "not a performance figure" in report.markdown(on_cpu(serving_rows()))


def texts_of(figure) -> list[str]:
    import matplotlib

    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


@pytest.mark.parametrize("where", ["a device", "a CPU"])
def test_the_picture_says_device_model_and_units(tmp_path, monkeypatch, where):
    drawn = []
    monkeypatch.setattr(picture, "save", lambda figure, path: drawn.append(figure))
    rows = serving_rows() if where == "a device" else on_cpu(serving_rows())
    picture.draw(rows, tmp_path / "serving.png")
    texts = texts_of(drawn[0])
    assert any("MiniMax-M3, TP 8" in text and rows[0].run.device["name"] in text for text in texts)
    assert "output tokens per second, all requests together" in texts
    assert "time per output token after the first, p50 (ms)" in texts
    assert "dspark, 5 forced (text is wrong)" in texts
    assert ("CPU: not a performance figure" in texts) == (where == "a CPU")


def test_the_picture_is_a_file(tmp_path):
    picture.draw(serving_rows(), tmp_path / "serving.png")
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")
