"""What the draft learns from is what its target says, with the features that its target has there."""

import pytest
import torch

from sglang_dspark.train.continuations import Recipe, cache_features, continue_prompts, supervised
from sglang_dspark.train.feature_cache import FeatureCache
from sglang_dspark.train.teachers import HuggingFaceTeacher
from tests.oracle.generate import greedy
from tests.oracle.target import Target

from .conftest import END, LAYERS, RECIPE


def test_greedy_continuations_are_the_target_s(teacher, pair, stream):
    prompts = stream[:24].view(3, 8).long()
    found = continue_prompts(teacher, prompts, 12)
    oracle = Target(pair.target)
    assert found.tolist() == [prompt + greedy(oracle, prompt, 12) for prompt in prompts.tolist()]


def test_a_warm_continuation_follows_its_generator(teacher, stream):
    prompts = stream[:24].view(3, 8).long()
    runs = [continue_prompts(teacher, prompts, 12, 1.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_cached_features_are_the_oracle_s(pair, features_folder):
    """Catches the wrong layer, the normed residual in place of the plain one, and rows out of order."""
    batch, oracle = FeatureCache(features_folder).read(torch.arange(RECIPE.sequences)), Target(pair.target)
    for row in (0, 5, 11):
        output = oracle.forward(batch.tokens[row].tolist())
        expected = torch.cat([output.layer_outputs[layer] for layer in LAYERS], dim=-1)
        torch.testing.assert_close(batch.features[row], expected, atol=1e-4, rtol=2**-8)
        logits = batch.last_hidden[row] @ oracle.weights["lm_head.weight"].T
        torch.testing.assert_close(logits, output.logits, atol=0.05, rtol=0.02)


def test_only_the_target_s_own_tokens_are_supervised():
    """Up to its first end, the end itself included; an end in the prompt ends nothing."""
    tokens = torch.tensor([[5, END, 6, 7, END, 8, END], [1, 2, 3, 4, 5, 6, 7]])
    tokens[1, 1] = 9
    mask = supervised(tokens, prompt_tokens=2, end_token=END)
    assert mask.int().tolist() == [[0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]]
    assert supervised(tokens, 2, None).int().tolist() == [[0, 0, 1, 1, 1, 1, 1]] * 2


@pytest.mark.parametrize("layers", [(0, 3), (-1,), ()])
def test_the_last_layer_and_the_embedding_are_no_features(teacher, stream, tmp_path, layers):
    with pytest.raises(ValueError, match="take some of 0 to 2"):
        cache_features(teacher, stream, RECIPE, layers, tmp_path / "cache", end_token=None)


def test_transformers_teaches_the_same(teacher, pair, stream):
    """Any target of transformers can teach: its hidden states mean what the module's do."""
    pytest.importorskip("transformers.models.minimax_m3_vl")
    from sglang_dspark.reference.minimax_m3_target import load_minimax_m3

    theirs = HuggingFaceTeacher(load_minimax_m3(pair.target), "x")
    tokens = stream[:60].view(2, 30).long()
    (ours, our_last), (outputs, last) = teacher.run(tokens, None), theirs.run(tokens, None)
    for layer in LAYERS:
        torch.testing.assert_close(outputs[layer], ours[layer], atol=5e-5, rtol=0)
    torch.testing.assert_close(last, our_last, atol=5e-5, rtol=0)
    prompts = tokens[:, :8]
    assert torch.equal(continue_prompts(theirs, prompts, 8), continue_prompts(teacher, prompts, 8))


@pytest.mark.parametrize("change", [{"sequences": 0}, {"prompt_tokens": 0}, {"new_tokens": 1}, {"temperatures": ()}])
def test_a_recipe_without_lessons_is_refused(change):
    with pytest.raises(ValueError, match="take at least"):
        Recipe(**{"sequences": 1, "prompt_tokens": 1, "new_tokens": 2, **change})
