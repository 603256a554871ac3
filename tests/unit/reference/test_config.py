"""What the model refuses to be built from, and from what it can."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_dspark.checkpoints import CheckpointError
from sglang_dspark.reference import MiniMaxM3DSparkModel, ReferenceConfig
from sglang_dspark.reference.config import DEFAULT_NUM_ANCHORS
from tests.unit.checkpoints import drafts


def test_a_table_and_an_object_say_the_same() -> None:
    table = drafts.automodel()
    assert ReferenceConfig.of(table) == ReferenceConfig.of(SimpleNamespace(**table))
    assert ReferenceConfig.of(table).num_anchors == 512


def test_a_transformers_config_is_read_as_it_would_be_saved() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.PretrainedConfig(**drafts.automodel())
    read = ReferenceConfig.of(config)
    assert read == ReferenceConfig.of(drafts.automodel())
    assert "id2label" not in read.table


def test_the_draft_s_own_sizes_are_read() -> None:
    """dense_intermediate_size is 80 and the released target's intermediate_size 72: both are the target's."""
    for table in (drafts.automodel(), drafts.released()):
        model = MiniMaxM3DSparkModel(table)
        assert model.layers[0].mlp.gate_proj.weight.shape == (64, 48)
        assert len(model.layers) == 2 and model.fc.weight.shape == (48, 3 * 48)


def test_the_released_layout_has_no_anchors_to_name() -> None:
    assert ReferenceConfig.of(drafts.released()).num_anchors == DEFAULT_NUM_ANCHORS
    with pytest.raises(CheckpointError, match="num_anchors: asked for at least 1"):
        ReferenceConfig.of(drafts.automodel(num_anchors=drafts.REMOVED))


@pytest.mark.parametrize("value", [0, -1, True, "512", 2.0])
def test_training_s_own_key(value: object) -> None:
    with pytest.raises(CheckpointError, match="num_anchors: asked for at least 1"):
        ReferenceConfig.of(drafts.automodel(num_anchors=value))


def test_a_key_that_would_make_another_network_is_refused() -> None:
    with pytest.raises(CheckpointError, match="use_gemma_norm"):
        MiniMaxM3DSparkModel(drafts.automodel(use_gemma_norm=False))


def test_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="asked for a draft's config.json table"):
        ReferenceConfig.of(7)
