"""From one layout to the other and back: the same bytes, or an error and nothing written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints import CheckpointError, Layout, convert, parse_draft_config, read_config
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET, released_name
from tests.unit.checkpoints.drafts import REMOVED, automodel, released
from tests.unit.checkpoints.folders import INDEX, canonical_tensors, contents, save, save_draft, save_target, tables

A, B = Layout.AUTOMODEL, Layout.RELEASED


def convert_to(layout: Layout, source: Path, destination: Path, target: Path | None = None, **options: Any) -> Path:
    write(plan(source, layout, target), destination, **options)
    return destination


def refused(source: Path, layout: Layout, target: Path | None = None) -> str:
    """The message of a refusal, which leaves the source's neighbourhood as it was."""
    before = contents(source.parent)
    with pytest.raises(CheckpointError) as refusal:
        write(plan(source, layout, target), source.parent / "out")
    assert contents(source.parent) == before and not (source.parent / "out").exists()
    return str(refusal.value)


def edit(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not REMOVED}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return folder


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
    a = save_draft(tmp_path / "a", automodel())
    blobs = tmp_path / "blobs"
    a.rename(blobs)
    a.mkdir()
    for path in blobs.iterdir():
        (a / path.name).symlink_to(path)
    b = convert_to(B, a, tmp_path / "b")
    assert not any(path.is_symlink() for path in b.iterdir()) and (b / "tokenizer.json").is_file()


# --- a draft inside its target ---------------------------------------------------------------------------------------


def bundled(folder: Path, wrapped: bool = True) -> Path:
    """A target in whose own shards a draft lies."""
    target = save_target(folder, "minimax" if wrapped else "text")
    keys = {k: v for k, v in released().items() if k not in ("architectures", "num_hidden_layers", "model_type")}
    config = read_config(target)
    draft = {key: keys.pop(key) for key in list(keys) if key.startswith("dspark_")}
    config |= draft
    (config["text_config"] if wrapped else config).update(keys)
    (target / "config.json").write_text(json.dumps(config))
    tensors = {
        released_name(name).removeprefix("language_model."): tensor
        for name, tensor in canonical_tensors(released()).items()
    }
    index = json.loads((target / INDEX).read_text())
    save_file(tensors, target / "dspark.safetensors", metadata={"format": "pt"})
    index["weight_map"] |= dict.fromkeys(tensors, "dspark.safetensors")
    (target / INDEX).write_text(json.dumps(index))
    return target


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_draft_inside_its_target_comes_out(tmp_path: Path, wrapped: bool) -> None:
    """The target's own tensors stay where they are; one of them among the draft's would be refused by every loader."""
    b = convert_to(B, bundled(tmp_path / "target", wrapped), tmp_path / "b")
    made = load_file(b / "model.safetensors")
    expected = {released_name(name): tensor for name, tensor in canonical_tensors(released()).items()}
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) for name in made)
    config = read_config(b)
    assert config["model_type"] == "minimax_m3" and not {"text_config", "vision_config"} & config.keys()
    assert parse_draft_config(config, "x") == parse_draft_config(released(), "x")


def test_a_draft_inside_its_target_in_automodels_layout(tmp_path: Path) -> None:
    """It is its own --target."""
    a = convert_to(A, bundled(tmp_path / "target"), tmp_path / "a")
    made = load_file(a / "model.safetensors")
    assert all(torch.equal(made[name], table) for name, table in tables().items())
    assert parse_draft_config(read_config(a), "x").layout is A


def test_a_target_without_a_draft(tmp_path: Path) -> None:
    """What is meant is most likely its dspark/ subfolder."""
    target = save_target(tmp_path / "target")
    assert "a target without dspark_* keys" in refused(target, B)
    save_draft(target / "dspark", released())
    assert f"its draft is {target / 'dspark'}, pass that" in refused(target, B)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "raw"), [(A, automodel()), (B, released())])
def test_the_layout_it_has_already(tmp_path: Path, layout: Layout, raw: dict[str, Any]) -> None:
    """Copying it would look as if something had been done."""
    source = save_draft(tmp_path / "a", raw)
    assert "has it already" in refused(source, layout, save_target(tmp_path / "target"))


def test_no_target_for_the_tables(tmp_path: Path) -> None:
    message = refused(save_draft(tmp_path / "b", released()), A)
    assert "embed_tokens.weight and lm_head.weight" in message and "--target" in message


@pytest.mark.parametrize("table", SHARED_WITH_TARGET)
def test_a_target_without_a_table(tmp_path: Path, table: str) -> None:
    made = {f"model.{name}" if name.startswith("embed") else name: t for name, t in tables().items() if name != table}
    config = read_config(save_target(tmp_path / "whole"))
    target = save(tmp_path / "target", config, made)
    message = refused(save_draft(tmp_path / "b", released()), A, target)
    assert f"The target {target} cannot be used" in message and f"{table}: found in none" in message


def test_a_tied_target_lends_its_embedding_twice(tmp_path: Path) -> None:
    config = read_config(save_target(tmp_path / "whole")) | {"tie_word_embeddings": True}
    target = save(tmp_path / "target", config, {"model.embed_tokens.weight": tables()["embed_tokens.weight"]})
    a = convert_to(A, save_draft(tmp_path / "b", released()), tmp_path / "a", target)
    made = load_file(a / "model.safetensors")
    assert torch.equal(made["lm_head.weight"], tables()["embed_tokens.weight"])


def test_a_table_under_two_names(tmp_path: Path) -> None:
    """Which of them the target reads is not ours to guess."""
    made = tables()
    both = {"model.embed_tokens.weight": made["embed_tokens.weight"], "lm_head.weight": made["lm_head.weight"]}
    both["language_model.lm_head.weight"] = made["lm_head.weight"].clone()
    target = save(tmp_path / "target", read_config(save_target(tmp_path / "whole")), both)
    assert "found 2 under different names" in refused(save_draft(tmp_path / "b", released()), A, target)


@pytest.mark.parametrize("table", [torch.zeros(101, 48), torch.zeros(100, 48, dtype=torch.uint8)])
def test_a_table_of_another_shape_or_packed(tmp_path: Path, table: torch.Tensor) -> None:
    made = {"model.embed_tokens.weight": tables()["embed_tokens.weight"], "lm_head.weight": table}
    target = save(tmp_path / "target", read_config(save_target(tmp_path / "whole")), made)
    assert "lm_head.weight: asked for shape [100, 48]" in refused(save_draft(tmp_path / "b", released()), A, target)


@pytest.mark.parametrize("change", [{"num_hidden_layers": 7}, {"hidden_size": 64}, {"vocab_size": 101}])
@pytest.mark.parametrize("layout", [A, B])
def test_another_target(tmp_path: Path, layout: Layout, change: dict[str, int]) -> None:
    source = save_draft(tmp_path / "source", released() if layout is A else automodel())
    message = refused(source, layout, save_target(tmp_path / "target", **change))
    assert "the draft that belongs to this target" in message


def test_a_target_that_is_none(tmp_path: Path) -> None:
    target = save_draft(tmp_path / "draft", automodel())
    assert "asked for architectures MiniMaxM3Sparse" in refused(save_draft(tmp_path / "b", released()), A, target)


def test_copies_that_are_not_the_targets_would_be_lost(tmp_path: Path) -> None:
    """With --target the converter looks before it drops them."""
    a = save_draft(tmp_path / "a", automodel())
    target = save_target(tmp_path / "target")
    assert plan(a, B, target).tensors
    changed = load_file(a / "model.safetensors")
    changed["lm_head.weight"] = changed["lm_head.weight"] + 1
    save_file(changed, a / "model.safetensors")
    assert "tensor lm_head.weight: 64 of 64 sampled rows" in refused(a, B, target)
    assert any("not compared without --target" in move.note for move in plan(a, B).tensors)


def test_the_last_layer_means_two_things(tmp_path: Path) -> None:
    """AutoModel takes it after the final norm; trained there, the converted draft would see other features."""
    b = save_draft(tmp_path / "b", released(dflash_config={"target_layer_ids": [1, 3, 5]}))
    assert "5 is the last layer" in refused(b, A, save_target(tmp_path / "target"))


def test_quantised_drafts(tmp_path: Path) -> None:
    """Their quantization_config names modules of one layout."""
    a = save_draft(tmp_path / "a", automodel(quantization_config={"quant_method": "fp8"}))
    assert "quantization_config: its module names belong to one layout" in refused(a, B)


def test_a_dtype_that_no_plain_draft_has(tmp_path: Path) -> None:
    """Integers where the config says nothing of quantisation: a config was lost, or a header is damaged."""
    raw = automodel()
    tensors = canonical_tensors(raw) | tables()
    tensors["fc.weight"] = torch.zeros(48, 144, dtype=torch.int16)
    assert "tensor fc.weight: asked for BF16, F16, F32, found I16" in refused(save(tmp_path / "a", raw, tensors), B)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["X"], "transformer_layer_config": {}}, "speculators' own keys"),
        ({"architectures": ["X"], "modelopt_version": "1"}, "ModelOpt's own keys"),
        ({"architectures": ["Qwen3DSparkModel"]}, "Qwen3DSparkModel"),
    ],
)
def test_other_layouts_are_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    assert named in refused(edit(save_draft(tmp_path / "a", automodel()), **change), B)


def test_a_modelopt_export(tmp_path: Path) -> None:
    """Its config can look like the original's; the file beside it tells."""
    a = save_draft(tmp_path / "a", automodel())
    (a / "hf_quant_config.json").write_text("{}")
    assert "hf_quant_config.json, a ModelOpt export" in refused(a, B)


def test_tensors_missing_unexpected_and_misshapen_are_listed_together(tmp_path: Path) -> None:
    raw = automodel()
    tensors = (
        canonical_tensors(raw) | tables() | {"nobody.weight": torch.zeros(1), "hidden_norm.weight": torch.zeros(3)}
    )
    del tensors["fc.weight"]
    message = refused(save(tmp_path / "a", raw, tensors), B)
    for part in ("fc.weight: missing", "nobody.weight: unexpected", "hidden_norm.weight: asked for shape [48], found"):
        assert part in message


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", ".."])
def test_an_index_that_points_outside(tmp_path: Path, name: str) -> None:
    """A download must not make the converter copy other files of the machine into a checkpoint."""
    a = save_draft(tmp_path / "a", automodel(), files=2)
    (tmp_path / "model.safetensors").write_bytes((a / "model-00001-of-00002.safetensors").read_bytes())
    index = json.loads((a / INDEX).read_text())
    index["weight_map"]["fc.weight"] = name
    (a / INDEX).write_text(json.dumps(index))
    message = refused(a, B)
    assert "outside the checkpoint" in message or ".." in message


def test_an_index_of_the_target_that_points_outside(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    index = json.loads((target / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "../x.safetensors"
    (target / INDEX).write_text(json.dumps(index))
    message = refused(save_draft(tmp_path / "b", released()), A, target)
    assert f"The target {target} cannot be used" in message and "outside the checkpoint" in message


@pytest.mark.parametrize("value", [3, [1]])
def test_a_remembered_table_that_is_none(tmp_path: Path, value: object) -> None:
    a = edit(save_draft(tmp_path / "a", automodel()), dspark_replaced_keys=value)
    assert "dspark_replaced_keys: asked for a table" in refused(a, B)


def test_a_remembered_value_cannot_change_the_draft(tmp_path: Path) -> None:
    """Whatever was edited into it, the converted config must read as the same network."""
    a = edit(save_draft(tmp_path / "a", automodel()), dspark_replaced_keys={"rope_theta": 1e4})
    message = refused(a, B)
    assert "rope_theta: 5000000.0 would become 10000.0" in message


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_truncated_file(tmp_path: Path, side: str, seed: int) -> None:
    """Cut anywhere, on either side: an error that names the file, and nothing beside it."""
    b, target = save_draft(tmp_path / "b", released(), files=2), save_target(tmp_path / "target")
    folder = b if side == "source" else target
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    if side == "target":
        names = json.loads((target / INDEX).read_text())["weight_map"]
        paths = [target / names["lm_head.weight"]]
    pick = random.Random(seed)
    for path in paths:
        whole = path.read_bytes()
        for length in [0, 5, len(whole) - 1, *pick.sample(range(len(whole)), 8)]:
            path.write_bytes(whole[:length])
            assert f"{path.name}: cannot be read" in refused(b, A, target)
        path.write_bytes(whole)
    assert plan(b, A, target).placements


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_truncated_json_file(tmp_path: Path, name: str) -> None:
    b, target = save_draft(tmp_path / "b", released(), files=2), save_target(tmp_path / "target")
    whole = (b / name).read_bytes().rstrip()
    for length in range(0, len(whole), max(1, len(whole) // 25)):
        (b / name).write_bytes(whole[:length])
        assert f"{name} cannot be read" in refused(b, A, target)


def test_a_missing_shard(tmp_path: Path) -> None:
    a = save_draft(tmp_path / "a", automodel(), files=3)
    (a / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: cannot be read" in refused(a, B)


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_in_a_header(tmp_path: Path, seed: int) -> None:
    """Refused, or read as the very same tensors: never other bytes under a name of the draft."""
    a = save_draft(tmp_path / "a", automodel())
    path = a / "model.safetensors"
    whole = path.read_bytes()
    before = [(p.name, p.source) for p in plan(a, B).placements]
    pick = random.Random(seed)
    refusals = 0
    for _ in range(100):
        changed = bytearray(whole)
        changed[pick.randrange(8 + int.from_bytes(whole[:8], "little"))] ^= 1 << pick.randrange(8)
        path.write_bytes(changed)
        try:
            assert [(p.name, p.source) for p in plan(a, B).placements] == before
        except CheckpointError:
            refusals += 1
    assert refusals > 80


# --- publishing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> convert.Plan:
    return plan(save_draft(tmp_path / "a", automodel()), B)


@pytest.mark.parametrize("kind", ["folder", "file", "full", "link"])
def test_an_existing_destination_is_refused(tmp_path: Path, made: convert.Plan, kind: str) -> None:
    """Not even an empty folder, which rename() would replace without a word."""
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        out.mkdir()
        if kind == "full":
            (out / "mine").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="found that it exists"):
        write(made, out)
    assert contents(tmp_path) == before


def test_a_destination_in_no_folder(tmp_path: Path, made: convert.Plan) -> None:
    with pytest.raises(CheckpointError, match="no such folder; make it first"):
        write(made, tmp_path / "no" / "out")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, made: convert.Plan, monkeypatch, error: BaseException
) -> None:
    """A folder that looks like a checkpoint and holds half of one would be served."""
    seen: list[int] = []

    def on_bytes(count: int) -> None:
        seen.append(count)
        assert not (tmp_path / "out").exists()
        if len(seen) == 5:
            raise error

    with pytest.raises(type(error)):
        write(made, tmp_path / "out", on_bytes=on_bytes)
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_a_destination_that_appears_meanwhile_is_left_alone(tmp_path: Path, made: convert.Plan) -> None:
    """Two converters with one destination: the second must not replace what the first published."""
    with pytest.raises(CheckpointError, match="found that it exists"):
        write(made, tmp_path / "out", on_bytes=lambda count: (tmp_path / "out").mkdir(exist_ok=True))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "out"} and not list((tmp_path / "out").iterdir())


def test_a_source_that_is_cut_meanwhile(tmp_path: Path, made: convert.Plan) -> None:
    path = tmp_path / "a/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(OSError, match="ended early"):
        write(made, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_the_folder_can_be_read_by_others(tmp_path: Path, made: convert.Plan) -> None:
    """mkdtemp's folders are their maker's alone: a server of another user could not open the draft."""
    write(made, tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_was_written_is_read_again(tmp_path: Path, made: convert.Plan) -> None:
    """A plan that loses a tensor is noticed before anything is published."""
    made.placements.pop()
    with pytest.raises(CheckpointError, match="missing"):
        write(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the real loader -------------------------------------------------------------------------------------------------


@pytest.fixture
def build(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.getfixturevalue("build_draft")
