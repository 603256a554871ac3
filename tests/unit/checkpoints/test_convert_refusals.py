"""What the converter refuses, by name and before it writes anything, and what damage it notices."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints import CheckpointError, Layout, read_config
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET
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


def test_a_target_without_a_draft(tmp_path: Path) -> None:
    """What is meant is most likely its dspark/ subfolder."""
    target = save_target(tmp_path / "target")
    assert "a target without dspark_* keys" in refused(target, B)
    save_draft(target / "dspark", released())
    assert f"its draft is {target / 'dspark'}, pass that" in refused(target, B)


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
