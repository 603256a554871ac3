"""From one layout to the other and back: the same bytes, under the names and keys of the other layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints import Layout, convert, parse_draft_config, read_config
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.checkpoints.tensors import released_name
from tests.unit.checkpoints.drafts import REMOVED, automodel, released
from tests.unit.checkpoints.folders import INDEX, canonical_tensors, contents, save, save_draft, save_target, tables

A, B = Layout.AUTOMODEL, Layout.RELEASED


def convert_to(layout: Layout, source: Path, destination: Path, target: Path | None = None, **options: Any) -> Path:
    write(plan(source, layout, target), destination, **options)
    return destination


# --- there and back --------------------------------------------------------------------------------------------------

DRAFTS = {
    "plain": {},
    "gated": {"markov_head_type": "gated"},
    "rnn": {"markov_head_type": "rnn"},
    "no confidence": {"enable_confidence_head": False, "confidence_head_with_markov": REMOVED},
    "rnn, no confidence": {"markov_head_type": "rnn", "enable_confidence_head": False},
    "confidence without markov": {"markov_head_type": "gated", "confidence_head_with_markov": False},
    "activation said right": {"hidden_act": "swigluoai"},
    "no activation": {"hidden_act": REMOVED},
    "nothing optional": {"num_anchors": REMOVED, "target_model_type": REMOVED, "enable_confidence_head": REMOVED},
    "keys of nobody": {"layer_types": ["full_attention"] * 2, "_name": {"x": [1, None]}, "auto_map": {"A": "b.C"}},
    "rope table": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
    # A target that has a draft of its own hands these down.
    "the target's own draft keys": {
        "dspark_block_size": 7,
        "dspark_noise_token_id": 3,
        "dflash_config": {"num_target_layers": 6, "causal": False},
        "dspark_config": {"use_dense_ffn": True},
    },
}


@pytest.mark.parametrize("changes", DRAFTS.values(), ids=DRAFTS)
def test_a_to_b_to_a_is_the_same_folder(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Files compared byte for byte: every tensor, every config key, the tokenizer."""
    a = save_draft(tmp_path / "a", automodel(**changes))
    b = convert_to(B, a, tmp_path / "b")
    back = convert_to(A, b, tmp_path / "back", save_target(tmp_path / "target"))
    assert contents(back) == contents(a)


@pytest.mark.parametrize("names", ["text", "minimax", "transformers"])
def test_a_float32_draft_of_a_bf16_target_comes_back(tmp_path: Path, names: str) -> None:
    """AutoModel trains in float32: its copies of the tables are wider than the target's own."""
    a = save_draft(tmp_path / "a", automodel(), torch.float32)
    b = convert_to(B, a, tmp_path / "b")
    back = convert_to(A, b, tmp_path / "back", save_target(tmp_path / "target", names))
    assert contents(back) == contents(a)


@pytest.mark.parametrize(
    "changes", [{}, {"dspark_markov_head_type": "rnn"}, {"enable_confidence_head": False}, {"sliding_window": 5}]
)
def test_b_to_a_to_b_is_the_same_folder(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The released config says more than AutoModel's (its target's depth and widths): none of it is lost."""
    b = save_draft(tmp_path / "b", released(**changes))
    a = convert_to(A, b, tmp_path / "a", save_target(tmp_path / "target"))
    assert contents(convert_to(B, a, tmp_path / "back")) == contents(b)


def test_shards_go_either_way(tmp_path: Path) -> None:
    """Split, converted, and put together again."""
    a = save_draft(tmp_path / "a", automodel())
    b = convert_to(B, a, tmp_path / "b", max_shard_bytes=20_000)
    assert len(list(b.glob("*.safetensors"))) > 2 and (b / INDEX).exists()
    back = convert_to(A, b, tmp_path / "back", save_target(tmp_path / "target"))
    assert contents(back) == contents(a)


# --- what comes out --------------------------------------------------------------------------------------------------


def test_the_released_layout(tmp_path: Path) -> None:
    """Against the names and keys written by hand: a converter and its inverse can agree on a layout of their own."""
    b = convert_to(B, save_draft(tmp_path / "a", automodel()), tmp_path / "b")
    made = load_file(b / "model.safetensors")
    expected = canonical_tensors(automodel())
    prefix = "language_model.model.dspark."
    assert len(made) == len(expected)
    for name, spelled in (
        ("fc.weight", "fc.weight"),
        ("norm.weight", "final_norm.weight"),
        ("layers.1.self_attn.k_norm.weight", "layers.1.decoder_layer.self_attn.k_norm.weight"),
        ("layers.0.mlp.down_proj.weight", "layers.0.decoder_layer.mlp.down_proj.weight"),
        ("markov_head.markov_w2.weight", "markov_head.markov_w2.weight"),
        ("confidence_head.proj.bias", "confidence_head.proj.bias"),
    ):
        assert torch.equal(made[prefix + spelled], expected[name])
    found, by_hand = read_config(b), released()
    for key in by_hand:
        if key.startswith("dspark_") or key in ("architectures", "hidden_act", "model_type"):
            assert found[key] == by_hand[key], key
    assert found["dflash_config"] | {"causal": False} == by_hand["dflash_config"]
    assert not {"block_size", "mask_token_id", "markov_rank", "target_layer_ids", "num_target_layers"} & found.keys()


def test_automodels_layout(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target", "minimax")
    a = convert_to(A, save_draft(tmp_path / "b", released()), tmp_path / "a", target)
    made, expected = load_file(a / "model.safetensors"), canonical_tensors(automodel()) | tables()
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in expected.items())
    found = read_config(a)
    by_hand = automodel(hidden_act="swigluoai", target_model_type="minimax_m3_vl")
    assert {key: found.get(key) for key in by_hand} == by_hand
    assert not any(key.startswith("dspark_") for key in found.keys() - {"dspark_replaced_keys"})


@pytest.mark.parametrize("prefix", ["language_model.model.dspark.", "model.dspark.", "dspark."])
@pytest.mark.parametrize("mlp", ["mlp", "block_sparse_moe"])
def test_every_spelling_of_the_released_names(tmp_path: Path, prefix: str, mlp: str) -> None:
    raw = released()
    tensors = {
        released_name(name).replace("language_model.model.dspark.", prefix).replace(".mlp.", f".{mlp}."): tensor
        for name, tensor in canonical_tensors(raw).items()
    }
    b = save(tmp_path / "b", raw, tensors)
    a = convert_to(A, b, tmp_path / "a", save_target(tmp_path / "target"))
    made = load_file(a / "model.safetensors")
    assert all(torch.equal(made[name], tensor) for name, tensor in canonical_tensors(raw).items())


def test_a_config_inside_a_vision_language_one(tmp_path: Path) -> None:
    """The released draft's keys may stand in text_config; AutoModel's layout is flat."""
    flat = released(model_type="minimax_m2")
    top = {key: flat.pop(key) for key in list(flat) if key.startswith("dspark_")} | {"model_type": "minimax_m3_vl"}
    raw = {**top, "architectures": flat.pop("architectures"), "text_config": flat, "vision_config": {"x": 1}}
    tensors = {released_name(name): tensor for name, tensor in canonical_tensors(released()).items()}
    made = plan(save(tmp_path / "b", raw, tensors), A, save_target(tmp_path / "target"))
    assert made.config["model_type"] == "minimax_m3"
    assert not {"text_config", "vision_config"} & made.config.keys()
    assert parse_draft_config(made.config, "x").target_layer_ids == (1, 3, 4)


def test_a_released_draft_that_leaves_out_what_has_a_default(tmp_path: Path) -> None:
    """AutoModel asserts that the keys are there."""
    raw = released(dspark_markov_head_type=REMOVED, dspark_ffn_hidden_size=REMOVED, dspark_use_dense_ffn=REMOVED)
    made = plan(save_draft(tmp_path / "b", raw), A, save_target(tmp_path / "target")).config
    assert made["markov_head_type"] == "vanilla" and made["intermediate_size"] == 64
    assert made["enable_confidence_head"] is True and made["confidence_head_with_markov"] is True
    assert made["num_anchors"] == 512 and made["target_model_type"] == "minimax_m3"


@pytest.mark.parametrize("layout", [A, B])
def test_every_key_and_tensor_of_the_source_has_its_line(tmp_path: Path, layout: Layout) -> None:
    """A key that is silently dropped is found when the draft is served."""
    raw = released(extra=1, dflash_config={"extra": 2}) if layout is A else automodel(extra=1)
    source = save_draft(tmp_path / "source", raw)
    made = plan(source, layout, save_target(tmp_path / "target"))
    sources = {move.source for move in made.keys}
    for key, value in raw.items():
        for path in [f"{key}.{inner}" for inner in value] if key in ("dflash_config", "dspark_config") else [key]:
            assert path in sources, path
    destinations = {move.destination for move in made.keys}
    for key in made.config:
        assert key in destinations or any(path.startswith(f"{key}.") for path in destinations), key
    assert all(move.reason for move in made.keys if not move.destination)
    assert {move.source for move in made.tensors} - {""} == set(load_file(source / "model.safetensors"))
    assert {move.destination for move in made.tensors} - {""} == {placement.name for placement in made.placements}
    assert all(move.note for move in made.tensors if not (move.source and move.destination))


def test_small_files_go_along_and_other_weights_do_not(tmp_path: Path, monkeypatch) -> None:
    a = save_draft(tmp_path / "a", automodel())
    monkeypatch.setattr(convert, "MAX_COPIED_BYTES", 100)
    for name, size in (("chat_template.jinja", 100), ("LICENSE", 5), ("big.json", 101), ("old.bin", 1), (".hidden", 1)):
        (a / name).write_bytes(b"x" * size)
    (a / "optimizer").mkdir()
    b = convert_to(B, a, tmp_path / "b")
    assert {path.name for path in b.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "LICENSE")
    }
    made = plan(a, B)
    assert {name for name, _ in made.left_out} == {"big.json", "old.bin", ".hidden", "optimizer"}


def test_a_leftover_file_of_another_save_is_not_part_of_it(tmp_path: Path) -> None:
    a = save_draft(tmp_path / "a", automodel(), files=3)
    save_file({"norm.weight": torch.full((48,), 9.0)}, a / "old.safetensors")
    b = convert_to(B, a, tmp_path / "b")
    expected = canonical_tensors(automodel())["norm.weight"]
    assert torch.equal(load_file(b / "model.safetensors")[released_name("norm.weight")], expected)
    assert {path.name for path in b.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


def test_links_are_followed(tmp_path: Path) -> None:
    """A hub's cache keeps every file as a link to a blob elsewhere."""
    blobs, a = save_draft(tmp_path / "blobs", automodel()), tmp_path / "snapshots" / "revision"
    a.mkdir(parents=True)
    for path in blobs.iterdir():
        (a / path.name).symlink_to(path)
    b = convert_to(B, a, tmp_path / "b")
    assert not any(path.is_symlink() for path in b.iterdir()) and (b / "tokenizer.json").is_file()
