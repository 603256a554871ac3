"""The oracle agrees with itself and with transformers; the draft is accepted often enough, and refused often enough."""

import json
from dataclasses import replace

import pytest
import tokenizers
import torch

from sglang_dspark.demo import DemoSpec, build, prompts
from tests.oracle.draft import Draft
from tests.oracle.generate import exact_distribution, greedy, speculative_greedy
from tests.oracle.target import Cache, Target

LONG = 4  # prompts()[2] has over 300 tokens, 3 and 4 over 200


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(automodel):
    return Target(automodel.target)


@pytest.fixture(scope="module")
def ids(automodel):
    tokenizer = tokenizers.Tokenizer.from_file(str(automodel.target / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in prompts(16)]


@pytest.fixture(scope="module")
def runs(automodel, target, ids):
    draft = Draft(automodel.draft, target)
    return [speculative_greedy(target, draft, prompt, 48) for prompt in ids[:10]]


def test_speculation_changes_no_token(target, ids, runs):
    """Catches a cache that keeps rejected tokens, and a bonus token taken from the wrong row."""
    for prompt, run in zip(ids, runs, strict=False):
        assert run.tokens == greedy(target, prompt, 48)


def test_a_step_at_a_time_equals_the_whole_sequence(target, ids):
    """Catches an incremental cache whose block selection differs from the one over the full sequence."""
    cache = Cache()
    tokens = ids[LONG]
    steps = [target.forward(tokens[:150], cache), target.forward(tokens[150:151], cache)]
    steps.append(target.forward(tokens[151:], cache))
    whole = target.forward(tokens)
    torch.testing.assert_close(torch.cat([step.logits for step in steps]), whole.logits, atol=2e-4, rtol=0)
    outputs = torch.cat([step.layer_outputs for step in steps], dim=1)
    torch.testing.assert_close(outputs, whole.layer_outputs, atol=2e-4, rtol=0)


def test_accepted_length_is_worth_speculating(runs):
    accepted = [length for run in runs for length in run.accepted_per_round]
    assert 2.5 < sum(accepted) / len(accepted) < 5.5
    assert min(accepted) == 1 and max(accepted) == 8
    assert all(sum(run.accepted_per_round) + 1 >= len(run.tokens) for run in runs)


def test_greedy_text_neither_ends_nor_loops(runs, automodel):
    ends = json.loads((automodel.target / "config.json").read_text())
    specials = set(range(6))
    assert ends["eos_token_id"] in specials
    for run in runs:
        assert not specials & set(run.tokens)
        assert len(set(run.tokens)) >= 10


def test_the_context_decides_some_target_tokens(target, ids, runs):
    """Without context the target would be a lookup table, and a broken attention would never be seen."""
    changed = [
        int(target.forward(ids[8][:20] + [token]).logits[-1].argmax()) != following
        for run in runs[:4]
        for token, following in zip(run.tokens, run.tokens[1:], strict=False)
    ]
    assert 0.08 < sum(changed) / len(changed) < 0.6


def test_sparse_attention_differs_from_full(automodel, target, ids):
    full = Target(automodel.target)
    full.config["sparse_attention_config"]["sparse_topk_blocks"] = 10_000
    chosen, everything = (model.forward(ids[2]).logits.argmax(-1) for model in (target, full))
    assert (chosen[:64] == everything[:64]).all()  # within 4 blocks of 16 nothing is left out
    assert (chosen[64:] != everything[64:]).float().mean() > 0.03


@pytest.mark.parametrize("wrong", ["shifted", "other layer", "nothing"])
def test_a_wrong_context_changes_proposals(automodel, target, ids, runs, wrong):
    """So that a server with misplaced context keys and values cannot pass as correct."""
    draft, differ, rounds = Draft(automodel.draft, target), 0, 0
    for prompt, run in zip(ids[:8], runs, strict=False):
        layers = target.forward(prompt + run.tokens).layer_outputs
        for end in range(len(prompt) + 4, len(prompt) + 40, 6):
            draft.reset()
            draft.append_context(layers[:, :end])
            right = draft.propose(run.tokens[end - len(prompt)]).tokens
            draft.reset()
            if wrong == "shifted":
                draft.append_context(torch.cat([layers[:, :1], layers[:, : end - 1]], dim=1))
            elif wrong == "other layer":
                draft.append_context(layers[[1, 0, 3, 2]][:, :end])
            else:
                draft.append_context(torch.zeros_like(layers[:, :end]))
            differ += draft.propose(run.tokens[end - len(prompt)]).tokens != right
            rounds += 1
    assert differ / rounds > 0.15


def test_both_layouts_propose_the_same(automodel, released, target, ids):
    drafts = [Draft(pair.draft, target) for pair in (automodel, released)]
    results = [speculative_greedy(target, draft, ids[1], 24) for draft in drafts]
    assert results[0] == results[1]


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("block_size", [1, 4])
def test_every_head_speculates_without_loss(tmp_path, ids, head, block_size):
    spec = DemoSpec.text(markov_head_type=head, block_size=block_size, confidence_head_with_markov=block_size == 4)
    pair = build(tmp_path, layout="released", spec=spec)
    target = Target(pair.target)
    run = speculative_greedy(target, Draft(pair.draft, target), ids[5], 24)
    assert run.tokens == greedy(target, ids[5], 24)
    assert {len(proposals) for proposals in run.proposals_per_round} == {block_size}
    assert run.accepted_length > (1.4 if block_size == 1 else 2)


def test_confidence_is_a_probability_that_varies(automodel, target, ids):
    draft = Draft(automodel.draft, target)
    draft.append_context(target.forward(ids[5]).layer_outputs)
    confidence = draft.propose(ids[5][-1]).confidence
    assert confidence.shape == (7,) and 0 < confidence.min() < confidence.max() < 1


def test_exact_distribution_is_the_product_of_conditionals(tmp_path):
    target = Target(build(tmp_path, spec=DemoSpec.tiny(5)).target)
    joint = exact_distribution(target, [1, 2, 0], 3)
    assert joint.shape == (5, 5, 5)
    torch.testing.assert_close(joint.sum(), torch.tensor(1.0, dtype=torch.float64))
    first = target.forward([1, 2, 0]).logits[-1].double().softmax(-1)
    torch.testing.assert_close(joint.sum((1, 2)), first)
    third = target.forward([1, 2, 0, 3, 2]).logits[-1].double().softmax(-1)
    torch.testing.assert_close(joint[3, 2] / joint[3, 2].sum(), third, atol=1e-6, rtol=1e-5)


def test_a_tiny_pair_spreads_its_choices_and_never_says_the_mask(tmp_path):
    target = Target(build(tmp_path, spec=DemoSpec.tiny(8)).target)
    joint = exact_distribution(target, [1, 2, 0], 2)
    assert joint[-1].sum() < 1e-9 and joint[:, -1].sum() < 1e-9
    assert joint.max() < 0.5 and (joint[:-1, :-1] > 1e-4).float().mean() > 0.9


def test_a_wrong_draft_is_mostly_refused(tmp_path):
    """The draft for sampling tests: a verifier that keeps what it should refuse shows at once."""
    lengths = {}
    for wrong in (False, True):
        spec = replace(DemoSpec.tiny(8), wrong_draft=wrong)
        pair = build(tmp_path / str(wrong), spec=spec)
        target = Target(pair.target)
        lengths[wrong] = speculative_greedy(target, Draft(pair.draft, target), [1, 2, 0], 60).accepted_length
    assert lengths[True] < 1.5 < lengths[False]


def test_transformers_computes_the_same_logits(tmp_path, ids):
    """The second opinion: transformers' own M3 text model. It has no initial blocks, so the pair is built without."""
    m3 = pytest.importorskip("transformers.models.minimax_m3_vl")
    pair = build(tmp_path, spec=DemoSpec.text(sparse_init_blocks=0))
    ours = Target(pair.target)
    settings = dict(ours.config) | {"rope_parameters": rope_parameters(ours.config)}
    for key in ("architectures", "model_type", "rope_theta", "torch_dtype"):
        settings.pop(key)
    config = m3.MiniMaxM3VLTextConfig(**settings)
    config._attn_implementation = "eager"
    theirs = m3.MiniMaxM3VLForCausalLM(config).float().eval()
    missing = theirs.load_state_dict(transformers_names(ours.weights, ours.config), strict=False)
    assert not missing.missing_keys and not missing.unexpected_keys
    with torch.no_grad():
        logits = theirs(torch.tensor([ids[LONG]]), use_cache=False).logits[0]
    torch.testing.assert_close(ours.forward(ids[LONG]).logits, logits, atol=5e-4, rtol=0)


def rope_parameters(config: dict) -> dict:
    share = config["rotary_dim"] / config["head_dim"]
    return {"rope_type": "default", "rope_theta": config["rope_theta"], "partial_rotary_factor": share}


def transformers_names(weights: dict, config: dict) -> dict:
    """The checkpoint under transformers' names: experts stacked, gate and up joined."""
    renamed = {}
    for name, tensor in weights.items():
        name = name.replace("block_sparse_moe.e_score", "mlp.gate.e_score").replace("block_sparse_moe", "mlp")
        renamed[name.replace("self_attn.index_", "self_attn.indexer.")] = tensor
    for layer, moe in enumerate(config["moe_layer_freq"]):
        mlp = f"model.layers.{layer}.mlp"
        dense = f"{mlp}.shared_experts" if moe else mlp
        parts = [renamed.pop(f"{dense}.{part}_proj.weight") for part in ("gate", "up")]
        renamed[f"{dense}.gate_up_proj.weight"] = torch.cat(parts)
        if moe:
            experts = range(config["num_local_experts"])
            gates, downs, ups = (
                [renamed.pop(f"{mlp}.experts.{expert}.{part}.weight") for expert in experts]
                for part in ("w1", "w2", "w3")
            )
            joined = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
            renamed |= {
                f"{mlp}.experts.gate_up_proj": torch.stack(joined),
                f"{mlp}.experts.down_proj": torch.stack(downs),
            }
    return renamed
