"""A run that was stopped and resumed ends with the very bits of one that was not."""

import json
from dataclasses import replace

import pytest
import torch

from sglang_dspark.train import digest_file
from sglang_dspark.train.loop import LoopSettings, train
from sglang_dspark.train.metrics import MetricsFile, ratios, read_metrics

from .conftest import make_objective

SETTINGS = LoopSettings(steps=8, learning_rate=3e-3, accumulate=2, seed=9)


@pytest.fixture
def whole(objective, tmp_path):
    """The state of a run without interruption."""
    train(objective, SETTINGS, tmp_path / "whole")
    return digest_file.load(tmp_path / "whole" / "state.pt")


def same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.mark.parametrize("stops", [[3], [1, 2, 7], [8]])
def test_resuming_is_bit_exact(whole, teacher, features_folder, tmp_path, stops):
    """Weights, both moments of AdamW, the step count, the metrics; with a fresh draft and optimizer after each stop."""
    folder = tmp_path / "parts"
    for number, stop in enumerate([*stops, None]):
        torch.rand(number)  # the global generator is somewhere else in every process
        train(make_objective(teacher, features_folder, seed=1), SETTINGS, folder, stop_after=stop)
    assert same(digest_file.load(folder / "state.pt"), whole)
    assert (folder / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def test_resuming_with_two_optimizers_is_bit_exact(teacher, features_folder, tmp_path):
    """Muon's momentum and AdamW's moments; catches states that go to the other optimizer."""
    for folder, stops in (("whole", [None]), ("parts", [3, None])):
        for stop in stops:
            objective = make_objective(teacher, features_folder, optimizer="muon")
            assert len(objective.optimizers) == 2
            train(objective, SETTINGS, tmp_path / folder, stop_after=stop)
    states = [digest_file.load(tmp_path / folder / "state.pt") for folder in ("whole", "parts")]
    assert same(*states)


def test_a_crash_between_states_repeats_the_steps_since(whole, teacher, features_folder, tmp_path):
    """Catches metrics written twice, and an optimizer that is stepped on from where it crashed."""

    def crash(step, steps, values):
        if step == 6:
            raise KeyboardInterrupt

    folder = tmp_path / "crashed"
    with pytest.raises(KeyboardInterrupt):
        train(make_objective(teacher, features_folder), SETTINGS, folder, save_every=3, progress=crash)
    assert digest_file.load(folder / "state.pt")["step"] == 6
    steps = []
    train(make_objective(teacher, features_folder), SETTINGS, folder, progress=lambda step, *_: steps.append(step))
    assert steps == [6, 7]
    assert same(digest_file.load(folder / "state.pt"), whole)
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == list(range(8))


def test_another_seed_is_another_run(whole, teacher, features_folder, tmp_path):
    """So that bit-exactness is not that of a run that ignores its data."""
    train(make_objective(teacher, features_folder), replace(SETTINGS, seed=10), tmp_path / "other")
    assert not same(digest_file.load(tmp_path / "other" / "state.pt")["module"], whole["module"])


def test_a_run_started_otherwise_is_not_resumed(whole, teacher, features_folder, tmp_path):
    with pytest.raises(ValueError, match=r"learning_rate: asked for 0.1, the state has 0.003\n  - steps: asked for 9"):
        changed = replace(SETTINGS, steps=9, learning_rate=0.1)
        train(make_objective(teacher, features_folder), changed, tmp_path / "whole")
    with pytest.raises(ValueError, match="objective: asked for '2 sequences"):
        train(make_objective(teacher, features_folder, batch=2), SETTINGS, tmp_path / "whole")


def test_a_damaged_state_is_not_resumed(whole, objective, tmp_path):
    path = tmp_path / "whole" / "state.pt"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(digest_file.DamagedFile, match="delete it and start again"):
        train(objective, SETTINGS, tmp_path / "whole")


def test_accumulation_is_the_mean_of_its_micro_batches(teacher, features_folder, tmp_path):
    """One plain SGD step, by the loop and by hand. Catches a sum in place of the mean, and a gradient left behind."""

    def fresh():
        objective = make_objective(teacher, features_folder)
        objective.optimizers = (torch.optim.SGD(objective.module.parameters(), lr=1.0),)
        return objective

    settings = LoopSettings(steps=1, learning_rate=0.5, accumulate=3, clip_norm=1e9, warmup_share=0, decay_share=0)
    looped, by_hand = fresh(), fresh()
    train(looped, settings, tmp_path)
    for micro in range(3):
        seed = settings.micro_seed(0, micro)
        torch.manual_seed(seed)
        (by_hand.loss(torch.Generator().manual_seed(seed))[0] / 3).backward()
    for weight in by_hand.module.parameters():
        if weight.grad is not None:
            weight.data -= 0.5 * weight.grad
    for name, weight in looped.module.named_parameters():
        torch.testing.assert_close(weight, by_hand.module.get_parameter(name), msg=name)


def test_the_rate_rises_stays_and_falls():
    settings = LoopSettings(steps=100, learning_rate=1.0, warmup_share=0.1, decay_share=0.5)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9:51] == [1.0] * 42
    assert rates[75] == pytest.approx(0.5) and 0 < rates[99] == pytest.approx(0.02)


@pytest.mark.parametrize("change", [{"steps": 0}, {"accumulate": 0}])
def test_a_run_without_steps_is_refused(change):
    with pytest.raises(ValueError, match="at least 1 of each"):
        LoopSettings(**{"steps": 1, "learning_rate": 1.0, **change})


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "loss": 2.0}\n{"step": 1, "lo')
    assert read_metrics(path) == [{"step": 0, "loss": 2.0}]
    with MetricsFile(path, 1) as metrics:
        metrics.write(1, {"loss": 1.0})
    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [2.0, 1.0]


def test_ratios_leave_out_what_was_never_counted():
    assert ratios({"a": (3.0, 4.0), "b": (0.0, 0.0)}) == {"a": 0.75}
