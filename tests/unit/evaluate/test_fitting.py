"""Temperatures come from SGLang's fitter, and the file that is written is what SGLang's server reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sglang.benchmark.dspark_sts_fit import default_temperature_grid, fit_sts_temperatures
from sglang.srt.speculative.dspark_components.dspark_sts import load_sts_calibration_from_path

from sglang_dspark.evaluate import fitting
from sglang_dspark.evaluate.calibrating import calibrate, cut, halves
from sglang_dspark.evaluate.fitting import FitError, fit_temperatures, run_sglang, write_calibration
from sglang_dspark.evaluate.samples import Samples, join
from tests.unit.evaluate.rounds import drawn


def test_a_known_temperature_is_found_and_served(tmp_path: Path) -> None:
    """An overconfident head, by a factor of 2 at one position and 3 at the next: through SGLang's fitter in its own
    process, judged on other rounds, and back through the loader that its server uses."""
    truth = torch.tensor([1.0, 1.0])
    samples = drawn(6_000, torch.tensor([2.0, 3.0]) * truth, truth)
    fit, held_out = halves(cut(samples))
    assert len(fit) + len(held_out) == 6_000
    found = calibrate(fit, held_out)
    directly = fit_sts_temperatures(logits=fit.logits, prefix_mask=fit.outcomes, grid=default_temperature_grid())
    assert found.temperatures == directly["temperatures"]
    assert found.temperatures == [pytest.approx(2.0, rel=0.3), pytest.approx(3.0, rel=0.3)]
    for one in found.positions:
        assert one.ece_after < 0.5 * one.ece_before

    path = tmp_path / "deep" / "sts.json"
    write_calibration(path, found.positions, "drawn", found.fitted_on)
    loaded = load_sts_calibration_from_path(str(path))
    assert loaded.temperatures == found.temperatures
    assert (loaded.dataset, loaded.num_samples) == ("drawn", len(fit))
    # The held-out errors, not the fitter's own.
    assert loaded.ece_after == [one.ece_after for one in found.positions] != directly["ece_after"]


def test_halves_hold_every_round_once() -> None:
    """Whole parts on either side, and not by their order: sets of prompts go through their kinds in turn."""
    samples = drawn(100, torch.ones(2), torch.ones(2))
    parts = cut(samples, parts=10)
    fit, held_out = halves(parts)
    both = join([fit, held_out])
    assert torch.equal(both.logits[:, 0].sort().values, samples.logits[:, 0].sort().values)
    sides = ["fit" if (fit.logits == part.logits[0]).all(1).any() else "held out" for part in parts]
    assert sides.count("fit") == 5
    assert sides not in (["fit", "held out"] * 5, ["fit"] * 5 + ["held out"] * 5)
    for part, side in zip(parts, sides, strict=True):
        whole = fit if side == "fit" else held_out
        assert all((whole.logits == row).all(1).any() for row in part.logits)
    assert torch.equal(halves(parts)[0].logits, fit.logits) and not torch.equal(halves(parts, 1)[0].logits, fit.logits)
    with pytest.raises(ValueError, match="two halves of 1 prompts"):
        halves(parts[:1])


def test_few_rounds_are_cut_into_fewer_parts() -> None:
    samples = drawn(3, torch.ones(2), torch.ones(2))
    assert [len(part) for part in cut(samples)] == [1, 1, 1]


def test_too_few_rounds() -> None:
    """15 bins of a dozen rounds fit noise, and the server would schedule by it."""
    few = Samples(torch.zeros(199, 2), torch.zeros(199, dtype=torch.int64))
    with pytest.raises(FitError, match="199 rounds; take 200 or more"):
        fit_temperatures(few)
    with pytest.raises(ValueError, match="no rounds to judge"):
        calibrate(few, Samples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))


def test_a_tool_that_fails_says_why() -> None:
    with pytest.raises(FitError, match="(?s)ended with status 1.*No module named"):
        run_sglang("sglang.benchmark.no_such_tool", [])


def test_without_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "find_spec", lambda name: None)
    with pytest.raises(FitError, match="no SGLang in this environment"):
        run_sglang("sglang.benchmark.dspark_sts_fit", [])


def test_polled_while_it_runs() -> None:
    """Progress of tools that take minutes."""
    seconds: list[float] = []
    run_sglang("json.tool", ["--help"], poll=seconds.append)
    assert seconds and seconds == sorted(seconds)
