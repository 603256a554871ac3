"""Every trainable weight has one optimizer, and the right one."""

import pytest

from sglang_dspark.train.optimizers import make_optimizers


def owners(module, optimizers):
    names = {id(weight): name for name, weight in module.named_parameters()}
    return [
        (type(optimizer).__name__, names[id(weight)], group["weight_decay"])
        for optimizer in optimizers
        for group in optimizer.param_groups
        for weight in group["params"]
    ]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_trainable_weight_once(objective, kind):
    """A weight in two groups would move twice, one in none never; the target's tables must not move at all."""
    found = [name for _, name, _ in owners(objective.module, make_optimizers(objective.module, kind, 0.1))]
    trained = [name for name, weight in objective.module.named_parameters() if weight.requires_grad]
    assert sorted(found) == sorted(trained)
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(found)


def test_norms_and_biases_do_not_decay(objective):
    decays = {
        name: decay for _, name, decay in owners(objective.module, make_optimizers(objective.module, "adamw", 0.1))
    }
    assert decays["fc.weight"] == 0.1 and decays["norm.weight"] == decays["confidence_head.proj.bias"] == 0


def test_muon_moves_maps_and_adamw_the_rest(objective):
    kinds = {
        name: kind
        for kind, name, _ in owners(objective.module, make_optimizers(objective.module, "muon", 0.1, ["markov_w"]))
    }
    assert kinds["fc.weight"] == kinds["layers.0.mlp.up_proj.weight"] == "Muon"
    assert kinds["markov_head.markov_w1.weight"] == kinds["norm.weight"] == "AdamW"


def test_an_unknown_optimizer_is_refused(objective):
    with pytest.raises(ValueError, match="'sgd': take one of adamw, muon"):
        make_optimizers(objective.module, "sgd", 0.0)
