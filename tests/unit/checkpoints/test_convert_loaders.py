"""Converted drafts in the real loaders: a converter and its inverse may agree on a layout that nobody else reads.

Three of them: SGLang's own draft model, this plugin's, and the reference in plain PyTorch. The parameters that the
original gives and those that its conversion gives must be equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sglang_dspark.checkpoints import Layout, read_config
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.reference.checkpoint import from_checkpoint
from tests.unit.checkpoints.drafts import automodel, released
from tests.unit.checkpoints.folders import save_draft, save_target, tables
from tests.unit.models.conftest import build, rank  # noqa: F401  (fixtures)

HEADS = pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
CONFIDENCE = pytest.mark.parametrize("confidence", [True, False])


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """An original in one layout and its conversion."""

    def make(original: Layout, head: str, confidence: bool) -> tuple[Path, Path]:
        target = save_target(tmp_path / "target")
        if original is Layout.AUTOMODEL:
            raw, other = automodel(markov_head_type=head, enable_confidence_head=confidence), Layout.RELEASED
        else:
            raw, other = released(dspark_markov_head_type=head, enable_confidence_head=confidence), Layout.AUTOMODEL
        source = save_draft(tmp_path / "source", raw, torch.float32)
        write(plan(source, other, target), tmp_path / "converted", max_shard_bytes=30_000)
        return source, tmp_path / "converted"

    return make


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@HEADS
@CONFIDENCE
@pytest.mark.parametrize("original", list(Layout), ids=lambda layout: layout.name.lower())
def test_this_plugins_model(build, pair, monkeypatch, original: Layout, head: str, confidence: bool) -> None:  # noqa: F811
    """Fault 16. Both folders load, as the same model."""
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")  # the mode that has a confidence head
    models = []
    for folder in pair(original, head, confidence):
        model = build(read_config(folder))
        loaded = model.load_weights(stored(folder).items())
        assert loaded == {name for name, _ in model.named_parameters()}
        models.append(dict(model.named_parameters()))
    assert_equal(*models)
    assert any("confidence_head" in name for name in models[0]) is confidence


# SGLang 0.5.23 takes the gated head's `gate_proj` for half of an MLP's and refuses it; this plugin's model loads it.
@pytest.mark.parametrize("head", ["vanilla", "rnn"])
def test_sglangs_own_model(build, pair, head: str) -> None:  # noqa: F811
    """Fault 16. It reads the released layout alone, with its own config reader and its own strict loader."""
    from sglang.srt.configs.minimax_vl import configure_minimax_m3_dspark
    from sglang.srt.models.dspark_minimax import DSparkMiniMaxDraftModel
    from transformers import PretrainedConfig

    automodel_folder, released_folder = pair(Layout.AUTOMODEL, head, True)
    ours = build(read_config(automodel_folder))
    ours.load_weights(stored(automodel_folder).items())
    config = configure_minimax_m3_dspark(PretrainedConfig(**read_config(released_folder)))
    theirs = DSparkMiniMaxDraftModel(config)
    theirs.load_weights(stored(released_folder).items())
    assert_equal(dict(ours.named_parameters()), dict(theirs.named_parameters()))


@HEADS
@CONFIDENCE
@pytest.mark.parametrize("original", list(Layout), ids=lambda layout: layout.name.lower())
def test_the_reference(pair, original: Layout, head: str, confidence: bool) -> None:
    """Fault 16. Both folders load, as the same model."""
    source, converted = pair(original, head, confidence)
    shared = tables(torch.float32)
    assert_equal(from_checkpoint(source, shared).state_dict(), from_checkpoint(converted, shared).state_dict())
