"""The pair that travels with the package: whole, small, readable by everyone, and worth serving.

The prompts are written for this project; nothing of them was trained on.
"""

import hashlib
import json
import shutil

import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from sglang_dspark.checkpoints import parse_draft_config, read_config, read_tensor_shapes
from sglang_dspark.checkpoints.tensors import account
from sglang_dspark.demo import DemoSpec, build, code_prompts, ensure, trained
from sglang_dspark.reference import from_checkpoint
from sglang_dspark.train.target_files import load_text_model
from tests.oracle.draft import Draft
from tests.oracle.generate import greedy, speculative_greedy
from tests.oracle.target import Target

PROMPTS = code_prompts(16)[::2]
NEW_TOKENS = 48


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    return build(tmp_path_factory.mktemp("trained"), spec=trained.SPEC)


@pytest.fixture(scope="module")
def target(shipped):
    return Target(shipped.target)


@pytest.fixture(scope="module")
def ids(shipped):
    tokenizer = tokenizers.Tokenizer.from_file(str(shipped.target / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def runs(shipped, target, ids):
    draft = Draft(shipped.draft, target)
    return [speculative_greedy(target, draft, prompt, NEW_TOKENS) for prompt in ids]


def accepted_length(runs):
    return sum(sum(run.accepted_per_round) for run in runs) / sum(len(run.accepted_per_round) for run in runs)


def test_it_travels_light_and_whole():
    files = [path for path in trained.FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10e6
    for name, digest in trained.digests().items():
        assert hashlib.sha256((trained.FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert {trained.TARGET_NAME, trained.DRAFT_NAME, trained.TOKENIZER_NAME} == trained.digests().keys()


@pytest.mark.parametrize("name", ["target.safetensors", "draft.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["cut short", "changed", "gone"])
def test_a_damaged_file_is_never_served(tmp_path, monkeypatch, name, damage):
    copy = tmp_path / "trained"
    shutil.copytree(trained.FOLDER, copy)
    content = bytearray((copy / name).read_bytes())
    if damage == "gone":
        (copy / name).unlink()
    else:
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content[:-1] if damage == "cut short" else content)
    monkeypatch.setattr(trained, "FOLDER", copy)
    with pytest.raises(ValueError, match=f"asked for the demo's {name}"):
        ensure(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("demo-*"))


def test_the_trained_pair_has_one_size(tmp_path):
    """Other sizes under its name would be other tensors than the weights that are there."""
    with pytest.raises(ValueError, match="as it is"):
        build(tmp_path, spec=DemoSpec.text(name="trained", vocab_size=1024))


def test_people_get_it_by_default(tmp_path, shipped):
    pair = ensure(tmp_path)
    for part in ("target", "draft"):
        for path in (getattr(shipped, part)).iterdir():
            assert (getattr(pair, part) / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("layout", ["automodel", "released"])
def test_both_layouts_are_complete(tmp_path, layout):
    pair = build(tmp_path, layout=layout, spec=trained.SPEC)
    config = parse_draft_config(read_config(pair.draft), str(pair.draft))
    assert account(config, read_tensor_shapes(pair.draft)) == []
    assert (config.block_size, config.markov_head_type, config.target_layer_ids) == (7, "vanilla", (0, 1))
    assert config.enable_confidence_head and config.mask_token_id == 3
    stored = load_file(pair.draft / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    tables = load_file(pair.target / "model.safetensors")
    shared = {
        "embed_tokens.weight": tables["model.embed_tokens.weight"].float(),
        "lm_head.weight": tables["lm_head.weight"].float(),
    }
    from_checkpoint(pair.draft, shared if layout == "released" else None)


def test_the_target_is_a_whole_minimax_m3(shipped):
    """Every kind of layer that M3 has, and the sizes that transformers computes alike."""
    config = json.loads((shipped.target / "config.json").read_text())
    assert config["architectures"] == ["MiniMaxM3SparseForCausalLM"]
    assert set(config["moe_layer_freq"]) == set(config["sparse_attention_config"]["sparse_attention_freq"]) == {0, 1}
    assert config["sparse_attention_config"]["sparse_init_block"] == 0
    assert config["rotary_dim"] < config["head_dim"]
    load_text_model(shipped.target)


def test_transformers_computes_the_same_logits(shipped, target, ids):
    pytest.importorskip("transformers.models.minimax_m3_vl")
    from sglang_dspark.reference.minimax_m3_target import load_minimax_m3

    tokens = [token for prompt in ids for token in prompt] * 4
    assert len(tokens) > 2 * 128, "the sparse layer must leave blocks out"
    with torch.no_grad():
        logits = load_minimax_m3(shipped.target)(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(target.forward(tokens).logits, logits, atol=1e-3, rtol=0)


def test_its_guesses_are_worth_serving(runs):
    """The demo's promise. A draft that learnt another layer's features, or a shifted block, stays below 2."""
    assert accepted_length(runs) >= 3.0


def test_its_markov_head_earns_its_place(shipped, target, ids, runs):
    draft = Draft(shipped.draft, target)
    draft.weights["markov_head.markov_w2.weight"].zero_()
    without = [speculative_greedy(target, draft, prompt, NEW_TOKENS) for prompt in ids]
    assert accepted_length(without) < accepted_length(runs) - 0.3


def test_speculation_changes_no_token(target, ids, runs):
    for prompt, run in zip(ids[:3], runs, strict=False):
        assert run.tokens == greedy(target, prompt, NEW_TOKENS)


def test_it_writes_and_does_not_stutter(runs, shipped):
    """Plausible text has many different tokens, and never the mask; a model that learnt nothing repeats one."""
    tokenizer = tokenizers.Tokenizer.from_file(str(shipped.target / "tokenizer.json"))
    assert all(3 not in run.tokens for run in runs)
    assert sum(len(set(run.tokens)) for run in runs) / len(runs) > 12
    text = " ".join(tokenizer.decode(run.tokens) for run in runs)
    assert sum(word in text for word in ("self", "return", "def ", "if ", "None", "the ")) >= 5


def test_confidence_tells_right_guesses_from_wrong_ones(shipped, target, ids, runs):
    """The head's probability is higher where the next proposal is kept than where it is not; 0.08 when it was trained.

    It learnt the acceptance at temperature 1, so at 0 it is a ranking rather than a probability."""
    draft, kept, refused = Draft(shipped.draft, target), [], []
    for prompt, run in zip(ids, runs, strict=True):
        position = len(prompt)
        layers = target.forward(prompt + run.tokens).layer_outputs
        for anchor, accepted in zip(run.anchors_per_round[:-1], run.accepted_per_round[:-1], strict=True):
            draft.reset()
            draft.append_context(layers[:, :position])
            confidence = draft.propose(anchor).confidence.tolist()
            kept += confidence[: accepted - 1]
            refused += confidence[accepted - 1 : accepted]
            position += accepted
    assert sum(kept) / len(kept) > 0.03 + sum(refused) / len(refused)


def test_code_prompts_are_different_and_end_in_no_space():
    prompts = code_prompts(1000)
    assert len(set(prompts)) == len(prompts) == 176 and code_prompts(3) == prompts[:3]
    assert not [prompt for prompt in prompts if prompt.endswith(" ")]
