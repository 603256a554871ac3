"""transformers models as targets: the features are pre-norm, the cache forgets, what cannot work is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.demo import build
from sglang_dspark.reference import HuggingFaceTarget, from_checkpoint, generate, load_minimax_m3
from tests.oracle.draft import Draft
from tests.oracle.generate import speculative_greedy
from tests.oracle.target import Target
from tests.unit.reference.pairs import small_spec

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model(without_initial_blocks):
    return load_minimax_m3(without_initial_blocks.target)


@pytest.fixture(scope="module")
def oracle(without_initial_blocks):
    return Target(without_initial_blocks.target)


def llama(layers: int = 3, **changes) -> torch.nn.Module:
    """Any other causal LM, random: what the draft proposes for it is wrong, and still nothing may change."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, **changes)).eval()


@pytest.mark.parametrize("use_cache", [True, False])
def test_minimax_m3_says_what_the_oracle_says(model, oracle, prompt_ids, use_cache) -> None:
    """All layers, the last one before its norm, in steps with a step back between; past 64 tokens keys are selected."""
    tokens = torch.tensor(prompt_ids[4][:130])
    wanted = oracle.forward(tokens.tolist())
    session = HuggingFaceTarget(model, use_cache).start([0, 1, 2, 3])
    first = session.extend(tokens[:100])
    session.extend(torch.tensor([7, 8, 9, 10]))
    session.truncate(101)
    session.truncate(100)
    rest = session.extend(tokens[100:])
    logits = torch.cat([first.logits, rest.logits])
    features = torch.cat([first.features, rest.features]).unflatten(-1, (4, -1)).transpose(0, 1)
    torch.testing.assert_close(logits, wanted.logits, atol=1e-3, rtol=0)
    torch.testing.assert_close(features, wanted.layer_outputs, atol=1e-3, rtol=0)


def test_generation_with_minimax_m3_is_the_oracle_s(model, oracle, without_initial_blocks, prompt_ids) -> None:
    draft = from_checkpoint(without_initial_blocks.draft)
    for prompt in prompt_ids[3:5]:
        ours = generate(draft, model, prompt, max_new_tokens=24)
        wanted = speculative_greedy(oracle, Draft(without_initial_blocks.draft, oracle), prompt, 24)
        assert ours.tokens == wanted.tokens
        assert ours.accepted_per_round == wanted.accepted_per_round
        plain = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None)
        assert ours.tokens == plain[0, len(prompt) :].tolist()


def test_any_causal_lm_can_be_the_target(automodel, prompt_ids) -> None:
    target, draft = llama(), from_checkpoint(automodel.draft)
    run = generate(draft, target, prompt_ids[0], max_new_tokens=20)
    prompt = torch.tensor([prompt_ids[0]])
    plain = target.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, eos_token_id=None
    )
    assert run.tokens == plain[0, prompt.shape[1] :].tolist()


def test_the_last_layer_is_read_before_the_norm() -> None:
    """Fault 8. transformers' hidden_states[-1] is the norm's output; the hook must leave nothing behind."""
    target = llama()
    with torch.no_grad():
        target.model.norm.weight.fill_(3.0)
    session = HuggingFaceTarget(target).start([2])
    step = session.extend(torch.tensor([5, 6, 7]))
    hooks = len(target.model.layers[-1]._forward_hooks)  # transformers leaves its own
    with torch.no_grad():
        torch.testing.assert_close(target.lm_head(target.model.norm(step.features)), step.logits)
    session.extend(torch.tensor([8]))
    assert len(target.model.layers[-1]._forward_hooks) == hooks <= 1


def test_a_layer_that_is_not_there() -> None:
    for layers in ([0, 3], [-1]):
        with pytest.raises(ValueError, match="found a model with layers 0 to 2"):
            HuggingFaceTarget(llama()).start(layers)


def test_a_model_that_hides_its_states_is_refused() -> None:
    target = llama()
    plain = target.forward
    target.forward = lambda **inputs: SimpleNamespace(
        logits=(out := plain(**inputs)).logits, past_key_values=out.past_key_values, hidden_states=None
    )
    with pytest.raises(ValueError, match="asked the target for 4 hidden states"):
        HuggingFaceTarget(target).start([0]).extend(torch.tensor([5]))


def test_a_recurrent_state_cannot_be_shortened(prompt_ids) -> None:
    """Mamba keeps no rows to drop: used with a cache, refused tokens would go on speaking."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "use_mambapy": False}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).eval()
    with pytest.raises(ValueError, match="use_cache=False"):
        HuggingFaceTarget(model).start([0]).extend(torch.tensor(prompt_ids[0][:5]))


# ---- reading a MiniMax-M3 checkpoint


@pytest.fixture
def folder(tmp_path):
    return build(tmp_path, spec=small_spec(sparse_init_blocks=0)).target


def test_initial_blocks_are_refused(automodel) -> None:
    with pytest.raises(ValueError, match="attends to no initial blocks, found 1"):
        load_minimax_m3(automodel.target)


@pytest.mark.parametrize("name", ["norm.weight", "layers.1.block_sparse_moe.experts.2.w3.weight"])
def test_a_missing_tensor_is_named(folder, name) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.{name}"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="missing"):
        load_minimax_m3(folder)


def test_a_surplus_tensor_is_named(folder) -> None:
    tensors = load_file(folder / "model.safetensors") | {"model.layers.0.surplus": torch.zeros(1)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="model.layers.0.surplus: unexpected"):
        load_minimax_m3(folder)


def test_another_architecture_is_refused(folder) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"architectures": ["LlamaForCausalLM"]}
    del config["rope_theta"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError) as error:
        load_minimax_m3(folder)
    assert "LlamaForCausalLM" in str(error.value) and "rope_theta" in str(error.value)
