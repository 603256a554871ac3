"""A draft starts as its config says, learns, and reads nothing but its own target's features."""

import pytest
import torch

from sglang_dspark.checkpoints import CheckpointError
from sglang_dspark.reference import MiniMaxM3DSparkModel, from_checkpoint, save_checkpoint
from sglang_dspark.train.draft_config import DraftChoices, new_draft_config, spread_layers
from sglang_dspark.train.draft_training import DraftObjective, new_draft
from sglang_dspark.train.feature_cache import FeatureCache
from sglang_dspark.train.loop import LoopSettings, train
from sglang_dspark.train.metrics import read_metrics

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def test_a_few_steps_reduce_the_loss_and_raise_the_acceptance(objective, tmp_path):
    tables = {name: objective.module.get_parameter(name).clone() for name in ("embed_tokens.weight", "lm_head.weight")}
    train(objective, LoopSettings(steps=40, learning_rate=4e-3), tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")

    def mean(name, part):
        return sum(row[name] for row in part) / len(part)

    for name in ("loss", "distance", "cross_entropy"):
        assert mean(name, rows[-8:]) < 0.8 * mean(name, rows[:4]), name
    assert mean("accepted_length", rows[-8:]) > 1.15 * mean("accepted_length", rows[:4])
    assert {f"acceptance_{row}" for row in range(1, 5)} <= rows[-1].keys()
    for name, table in tables.items():
        assert torch.equal(objective.module.get_parameter(name), table), f"{name} is the target's"


def test_a_trained_draft_is_saved_and_read_again(objective, tmp_path):
    train(objective, LoopSettings(steps=2, learning_rate=1e-3), tmp_path / "run")
    save_checkpoint(objective.module, tmp_path / "draft")
    again = from_checkpoint(tmp_path / "draft")
    for name, tensor in objective.module.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_features_of_other_layers_are_refused(teacher, features_folder):
    choices = DraftChoices(mask_token_id=11, target_layer_ids=(0, 1), layers=1, block_size=4, markov_rank=8)
    draft = new_draft(new_draft_config(teacher.config, choices), teacher, 0)
    with pytest.raises(ValueError, match=r"reads layers \[0, 1\].*are of layers \[0, 2\]"):
        DraftObjective(draft, FeatureCache(features_folder), batch=2)


def test_the_same_seed_gives_the_same_draft(teacher):
    choices = DraftChoices(mask_token_id=11, target_layer_ids=(0, 2), layers=2, markov_rank=8)
    config = new_draft_config(teacher.config, choices)
    first, second, third = (new_draft(config, teacher, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["fc.weight"], third["fc.weight"])
    assert torch.equal(first["lm_head.weight"], teacher.lm_head.weight)


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_a_target_of_another_family_gets_a_draft(head):
    """Its config has no rotary_dim, no head_dim and no SwiGLU constants."""
    choices = DraftChoices(mask_token_id=49, target_layer_ids=(0, 3), markov_head_type=head, block_size=5)
    draft = MiniMaxM3DSparkModel(new_draft_config(LLAMA, choices))
    facts = draft.config.draft
    assert (facts.head_dim, facts.rotary_dim, facts.rope_theta) == (8, 8, 10000.0)
    assert (facts.num_target_layers, facts.block_size, facts.markov_head_type) == (5, 5, head)
    assert facts.mlp_width == 64


def test_a_target_without_a_rope_base_gets_no_default():
    """A wrong base never raises later: acceptance just collapses."""
    target = {key: value for key, value in LLAMA.items() if key != "rope_parameters"}
    with pytest.raises(CheckpointError, match="rope_theta"):
        MiniMaxM3DSparkModel(new_draft_config(target, DraftChoices(mask_token_id=1, target_layer_ids=(0,))))


@pytest.mark.parametrize(
    ("depth", "layers"), [(2, (0,)), (3, (0, 1)), (4, (0, 1, 2)), (9, (0, 4, 7)), (60, (0, 29, 58))]
)
def test_layers_are_spread_and_leave_out_the_last(depth, layers):
    assert spread_layers(depth) == layers


def test_a_target_of_one_layer_has_no_features():
    with pytest.raises(ValueError, match="at least 2"):
        spread_layers(1)
