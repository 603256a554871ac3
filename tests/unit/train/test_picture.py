"""The picture is an extra: without matplotlib a clear message, with it a file."""

import sys

import pytest

from sglang_dspark.train.picture import draw_run, load_pyplot


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RuntimeError, match=r"pip install 'sglang-dspark\[plot\]'"):
        load_pyplot()


def test_no_metrics_no_picture(tmp_path):
    with pytest.raises(RuntimeError, match="found no metrics"):
        draw_run([], tmp_path / "run.png")


def test_a_run_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"step": step, "loss": 3 - step / 100, "acceptance_1": step / 200} for step in range(200)]
    draw_run(rows, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
