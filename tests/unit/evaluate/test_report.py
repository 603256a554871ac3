"""The results file holds all that the tables and the pictures show, and says when there is nothing to compare with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_dspark.bench.rows import Run
from sglang_dspark.evaluate import picture, results
from sglang_dspark.evaluate.acceptance import SetResult
from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.calibrating import Calibration, calibration_table
from sglang_dspark.evaluate.calibration import judge
from sglang_dspark.evaluate.counts import Counts
from sglang_dspark.evaluate.published import for_target
from sglang_dspark.evaluate.report import acceptance_markdown, calibration_markdown
from sglang_dspark.evaluate.results import ResultsError, acceptance_table
from sglang_dspark.evaluate.samples import Samples

RUN = Run(
    started="2026-01-02T03:04:05+00:00",
    command="sglang-dspark eval acceptance",
    commit="0123456789abcdef",
    device={"name": "CPU"},
    versions={"sglang-dspark": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "sglang": "0.5.23"},
)
SERVER = {"kind": "server", "url": "http://host:1", "version": "0.5.23", "model_path": "Qwen/Qwen3-4B"}


def set_result(name: str, counts: Counts) -> SetResult:
    return SetResult(name, f"{name}.jsonl", "turns", 2, 10, 40, counts)


def acceptance(*sets: SetResult, model: str = "Qwen/Qwen3-4B") -> dict[str, Any]:
    return acceptance_table(RUN, SERVER, Settings(temperature=1.0), sets, for_target(model))


def calibration() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(50, 2, generator=generator), torch.randint(0, 3, (50,), generator=generator))
    found = Calibration(60, samples, judge(samples, [1.5, 0.5]))
    return calibration_table(RUN, {"kind": "reference"}, Settings(), "every other prompt of a", found)


def cells(markdown: str, first: str) -> list[list[str]]:
    """The cells of every table row that begins with `first`."""
    rows = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith(f"| {first} |")]
    return [[cell.strip() for cell in row] for row in rows]


def test_acceptance_in_words() -> None:
    table = acceptance(
        set_result("gsm8k", Counts.of_rounds([0, 1, 3, 3], 3)), set_result("own", Counts.of_rounds([0], 3))
    )
    text = acceptance_markdown(table)
    assert cells(text, "gsm8k") == [
        ["gsm8k", "2", "4", "40", "**2.75**", "6.11"],
        ["gsm8k", "0.75", "0.67", "1.00"],
        ["gsm8k", "0.75", "0.50", "0.50"],
    ]
    assert cells(text, "own")[:2] == [["own", "2", "1", "40", "**1.00**", "-"], ["own", "0.00", "-", "-"]]
    for said in ("DSpark for Qwen3-4B", "Table 1", "temperature 1.0", "SGLang 0.5.23 at http://host:1", "0123456789ab"):
        assert said in text


@pytest.mark.parametrize(("model", "name"), [("Qwen/Qwen3-32B", "gsm8k"), ("Qwen/Qwen3-4B", "own")])
def test_nothing_published_of_this(model: str, name: str) -> None:
    """No column of dashes, and no source that gave nothing."""
    text = acceptance_markdown(acceptance(set_result(name, Counts.of_rounds([0, 1], 1)), model=model))
    assert "ublished" not in text and cells(text, name)[0] == [name, "2", "2", "40", "**1.50**"]


def test_trimmed_rounds_are_said() -> None:
    text = acceptance_markdown(acceptance(set_result("own", Counts.of_histogram([1, 1], 3, caps=[0, 0, 2]))))
    assert "verified less than was proposed" in text
    assert cells(text, "own")[0] == ["own", "2", "2", "40", "**1.50**", "2.00"]
    assert "verified less" not in acceptance_markdown(acceptance(set_result("own", Counts.of_rounds([0, 1], 1))))


def test_calibration_in_words() -> None:
    table = calibration()
    text = calibration_markdown(table)
    first, second = table["positions"]
    assert cells(text, "1") == [
        [
            "1",
            "1.50",
            *(f"{first[key]:.3f}" for key in ("observed", "predicted_before", "predicted_after")),
            f"{100 * first['ece_before']:.1f}%",
            f"**{100 * first['ece_after']:.1f}%**",
            *(f"{first[key]:.3f}" for key in ("brier_before", "brier_after")),
            f"{first['auc']:.3f}",
        ]
    ]
    mean = (first["ece_after"] + second["ece_after"]) / 2
    assert f"**{100 * mean:.1f}%**" in cells(text, "mean")[0]
    assert "fitted on 60 rounds; everything below is of 50 others" in text


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for table in (acceptance(set_result("own", Counts.of_rounds([0, 1], 1))), calibration()):
        path = tmp_path / "deep" / "r.json"
        results.write(path, table)
        again = results.read(path, table["kind"])
        render = acceptance_markdown if table["kind"] == "acceptance" else calibration_markdown
        assert render(again) == render(table)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"schema": 2, "kind": "acceptance"}', '{"schema": 1, "kind": "calibration"}']
)
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ResultsError, match="asked for results"):
        results.read(path, "acceptance")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RuntimeError, match=r"pip install 'sglang-dspark\[plot\]'"):
        picture.draw_acceptance(acceptance(set_result("own", Counts.of_rounds([0, 1], 1))), tmp_path / "p.png")


def test_pictures(tmp_path: Path) -> None:
    """With gaps: a data set without a published figure, a position that no round reached, an outcome that never was."""
    pytest.importorskip("matplotlib")
    table = acceptance(set_result("gsm8k", Counts.of_rounds([0, 1, 3], 3)), set_result("own", Counts.of_rounds([0], 3)))
    picture.draw_acceptance(table, tmp_path / "deep" / "a.png")
    picture.draw_calibration(calibration(), tmp_path / "c.png")
    for path in (tmp_path / "deep" / "a.png", tmp_path / "c.png"):
        assert path.read_bytes()[:4] == b"\x89PNG"
