"""The pair on disk: the same bytes every time, the sizes and keys that loaders rely on, and one pair in two layouts."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sglang_dspark.demo import DemoSpec, build


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("layout", ["automodel", "released"])
def test_two_builds_are_the_same_bytes(tmp_path, layout):
    build(tmp_path / "one", layout=layout)
    torch.manual_seed(1)  # the global generator has no say
    torch.rand(7)
    build(tmp_path / "two", layout=layout)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_another_seed_gives_other_weights(tmp_path):
    one = build(tmp_path / "one", spec=DemoSpec.text(seed=1))
    two = build(tmp_path / "two", spec=DemoSpec.text(seed=2))
    for name in ("target", "draft"):
        first, second = (load_file(getattr(pair, name) / "model.safetensors") for pair in (one, two))
        random = [key for key in first if key.endswith(("q_proj.weight", "markov_w2.weight", "embed_tokens.weight"))]
        assert random and not any(torch.equal(first[key], second[key]) for key in random)


def test_a_pair_stays_small(automodel, released):
    for pair, most in ((automodel, 2.0e6), (released, 1.5e6)):
        assert 2.5e6 < (pair.target / "model.safetensors").stat().st_size < 3.5e6
        assert 0.8e6 < (pair.draft / "model.safetensors").stat().st_size < most


def test_both_layouts_hold_the_same_draft(automodel, released):
    """The automodel layout adds only the copies of the target's embedding and head."""
    flat = load_file(automodel.draft / "model.safetensors")
    target = load_file(automodel.target / "model.safetensors")
    assert torch.equal(flat.pop("embed_tokens.weight"), target["model.embed_tokens.weight"])
    assert torch.equal(flat.pop("lm_head.weight"), target["lm_head.weight"])
    nested = load_file(released.draft / "model.safetensors")
    assert len(nested) == len(flat)
    for name, tensor in flat.items():
        layers = name.replace("layers.0.", "layers.0.decoder_layer.").replace("layers.1.", "layers.1.decoder_layer.")
        renamed = "final_norm.weight" if name == "norm.weight" else layers
        assert torch.equal(nested[f"language_model.model.dspark.{renamed}"], tensor), name


def test_targets_do_not_depend_on_the_layout(automodel, released):
    assert files(automodel.target) == files(released.target)


def test_target_config_names_every_part_of_m3(automodel):
    found = config(automodel.target)
    assert found["architectures"] == ["MiniMaxM3SparseForCausalLM"]
    assert found["model_type"] == "minimax_m3"
    assert (found["head_dim"], found["rotary_dim"], found["rope_theta"]) == (128, 64, 5e6)
    assert (found["use_gemma_norm"], found["qk_norm_type"]) == (True, "per_head")
    assert (found["hidden_act"], found["swiglu_alpha"], found["swiglu_limit"]) == ("swigluoai", 1.702, 7.0)
    assert found["num_attention_heads"] > found["num_key_value_heads"]
    assert found["moe_layer_freq"][0] == 0 and 1 in found["moe_layer_freq"]
    sparse = found["sparse_attention_config"]
    assert {0, 1} == set(sparse["sparse_attention_freq"])
    # As in M3: on every sparse layer the index branch has no value, so the checkpoint holds no index_v or index_o.
    assert sparse["sparse_disable_index_value"] == sparse["sparse_attention_freq"]
    names = load_file(automodel.target / "model.safetensors").keys()
    assert any("index_q_proj" in name for name in names) and not any("index_v" in name for name in names)


def test_draft_config_of_the_trainer(automodel):
    found = config(automodel.draft)
    assert found["architectures"] == ["MiniMaxM3DSparkModel"]
    assert (found["num_hidden_layers"], found["num_target_layers"], found["target_model_type"]) == (2, 4, "minimax_m3")
    assert (found["block_size"], found["markov_rank"], found["markov_head_type"]) == (7, 64, "vanilla")
    assert found["target_layer_ids"] == [0, 2]
    assert found["num_anchors"] > 0
    # The width traps: the draft's MLP is intermediate_size wide, whatever the copied dense_intermediate_size says.
    gate = load_file(automodel.draft / "model.safetensors")["layers.0.mlp.gate_proj.weight"]
    assert gate.shape[0] == found["intermediate_size"] != found["dense_intermediate_size"]
    assert found["sparse_attention_config"] and found["moe_layer_freq"]  # copied from the target, meant to be ignored


def test_draft_config_of_the_release(released):
    found = config(released.draft)
    assert found["architectures"] == ["DSparkMiniMaxDraftModel"]
    assert (found["dspark_block_size"], found["dspark_markov_rank"]) == (7, 64)
    assert found["dspark_noise_token_id"] < found["vocab_size"]
    assert found["dflash_config"]["target_layer_ids"] == [0, 2]
    assert (found["dflash_config"]["num_hidden_layers"], found["dflash_config"]["num_target_layers"]) == (2, 4)
    gate = load_file(released.draft / "model.safetensors")
    width = gate["language_model.model.dspark.layers.0.decoder_layer.mlp.gate_proj.weight"].shape[0]
    assert width == found["dspark_ffn_hidden_size"] == found["dspark_config"]["ffn_hidden_size"]
    assert width not in (found["intermediate_size"], found["dense_intermediate_size"])


def test_weights_are_bf16_except_the_routing_bias(automodel):
    for folder in (automodel.target, automodel.draft):
        with safe_open(folder / "model.safetensors", "pt") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        wide = {name for name, kind in kinds.items() if kind != "BF16"}
        assert all(name.endswith("e_score_correction_bias") for name in wide)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {"markov_head_type": "gated"},
            {"markov_head.gate_proj.weight": (64, 192), "markov_head.gate_proj.bias": (64,)},
        ),
        (
            {"markov_head_type": "rnn", "markov_rank": 16},
            {"markov_head.joint_proj.weight": (48, 160), "markov_head.joint_proj.bias": (48,)},
        ),
        ({"confidence_head_with_markov": False}, {"confidence_head.proj.weight": (1, 128)}),
        ({"target_layer_ids": (0, 1, 2)}, {"fc.weight": (128, 384)}),
        ({"draft_layers": 1, "block_size": 15}, {"layers.0.mlp.gate_proj.weight": (96, 128)}),
    ],
)
def test_options_shape_the_draft(tmp_path, options, names):
    pair = build(tmp_path, spec=DemoSpec.text(**options))
    tensors = load_file(pair.draft / "model.safetensors")
    assert {name: tuple(tensors[name].shape) for name in names} == names
    found = config(pair.draft)
    for key, value in options.items():
        written = found["num_hidden_layers" if key == "draft_layers" else key]
        assert written == (list(value) if isinstance(value, tuple) else value)


def test_a_draft_without_confidence_head_holds_none(tmp_path):
    pair = build(tmp_path, layout="released", spec=DemoSpec.text(enable_confidence_head=False))
    assert config(pair.draft)["enable_confidence_head"] is False
    assert not any("confidence" in name for name in load_file(pair.draft / "model.safetensors"))


def test_what_cannot_be_built_is_refused_with_every_reason():
    with pytest.raises(ValueError, match="cannot be built") as refused:
        DemoSpec.text(block_size=32, markov_head_type="lstm", target_layer_ids=(0, 3), moe_layers=(0, 1, 1, 1))
    for part in ("block_size is 32", "markov_head_type is 'lstm'", "target_layer_ids is [0, 3]"):
        assert part in str(refused.value)


def test_an_unknown_layout_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="'speculators'.*automodel, released"):
        build(tmp_path, layout="speculators")
