"""The lint: each mismatch that others shipped is one finding, and a good pair has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints.files import read_tensors
from sglang_dspark.checkpoints.lint import Level, lint
from sglang_dspark.checkpoints.tables import difference
from tests.unit.checkpoints.drafts import REMOVED, automodel, released
from tests.unit.checkpoints.folders import INDEX, save, save_draft, save_target, tables

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


def bad(draft: Path, target: Path) -> list[tuple[Level, str, str]]:
    """Every finding that is not ok."""
    return [(found.level, found.subject, found.text) for found in lint(draft, target) if found.level is not OK]


def only(draft: Path, target: Path, level: Level, subject: str) -> str:
    """The text of the one finding there is."""
    found = bad(draft, target)
    assert [(this, about) for this, about, _ in found] == [(level, subject)], found
    return found[0][2]


@pytest.mark.parametrize("raw", [automodel(), released()], ids=["automodel", "released"])
@pytest.mark.parametrize("names", ["text", "minimax", "transformers"])
def test_a_good_pair(tmp_path: Path, raw: dict[str, Any], names: str) -> None:
    """A warning that is always there is read by nobody."""
    findings = lint(save_draft(tmp_path / "draft", raw), save_target(tmp_path / "target", names))
    assert [found for found in findings if found.level is not OK] == []
    assert {found.subject for found in findings} == {
        *("draft tensors", "hidden_size", "vocab_size", "num_target_layers", "positions", "target_layer_ids"),
        *("mask token", "rotary_dim", "rope_theta", "rope type", "rms_norm_eps", "window", "block_size"),
        *("attention heads", "Markov head", "confidence head", "quantisation"),
        *("embed_tokens.weight", "lm_head.weight"),
    }


# --- config against config -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "level", "subject", "said"),
    [
        ({"hidden_size": 64}, PROBLEM, "hidden_size", "the target has 64, the draft was made for 48"),
        ({"vocab_size": 101}, PROBLEM, "vocab_size", "the target has 101"),
        ({"num_hidden_layers": 7}, PROBLEM, "num_target_layers", "the target has 7"),
        ({"rotary_dim": 16}, WARNING, "rotary_dim", "8, the target's is 16"),
        ({"rope_theta": 1e4}, WARNING, "rope_theta", "5000000.0, the target's is 10000.0"),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e4}}, WARNING, "rope_theta", "10000.0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, WARNING, "rope type", "default, the target's is yarn"),
        ({"rms_norm_eps": 1e-5}, WARNING, "rms_norm_eps", "1e-06, the target's is 1e-05"),
        ({"max_position_embeddings": 1024}, WARNING, "positions", "--context-length 512"),
        ({"eos_token_id": 99}, WARNING, "mask token", "99 is also the target's eos_token_id"),
        ({"eos_token_id": [2, 99]}, WARNING, "mask token", "eos_token_id"),
        ({"pad_token_id": 99}, WARNING, "mask token", "pad_token_id"),
        ({"bos_token_id": 99}, WARNING, "mask token", "bos_token_id"),
        ({"tie_word_embeddings": True}, WARNING, "LM head", "ties it to its embedding"),
    ],
)
def test_another_target(tmp_path: Path, change: dict[str, Any], level: Level, subject: str, said: str) -> None:
    """One value differs, and only that is named."""
    findings = bad(save_draft(tmp_path / "draft", released()), save_target(tmp_path / "target", **change))
    assert [found[:2] for found in findings] == [(level, subject)]
    assert said in findings[0][2]


def test_a_target_with_fewer_layers_than_the_draft_listens_to(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target", num_hidden_layers=4)
    found = bad(save_draft(tmp_path / "draft", released()), target)
    assert [about for _, about, _ in found] == ["num_target_layers", "target_layer_ids"]
    assert "[4] of [1, 3, 4] are not layers of a target with 4" in found[1][2]


def test_the_last_layer(tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", released(dflash_config={"target_layer_ids": [0, 1, 5]}))
    assert "before the final norm" in only(draft, save_target(tmp_path / "target"), WARNING, "target_layer_ids")


def test_special_tokens_of_the_generation_config(tmp_path: Path) -> None:
    """Fault 11. Chat models often name their end of turn there alone."""
    target = save_target(tmp_path / "target")
    (target / "generation_config.json").write_text('{"eos_token_id": [98, 99]}')
    assert "eos_token_id" in only(save_draft(tmp_path / "draft", released()), target, WARNING, "mask token")


@pytest.mark.parametrize(
    ("change", "level", "subject", "said"),
    [
        ({"mask_token_id": 100}, PROBLEM, "draft config", "mask_token_id"),
        ({"mask_token_id": REMOVED}, PROBLEM, "draft config", "mask_token_id"),
        ({"target_layer_ids": [1, 3, 5]}, PROBLEM, "draft config", "the last layer"),
        ({"target_layer_ids": [-1, 3, 4]}, PROBLEM, "draft config", "-1 means the embedding"),
        ({"layer_types": ["sliding_attention"] * 2}, PROBLEM, "draft config", "sliding-window"),
        ({"draft_vocab_size": 50}, PROBLEM, "draft config", "reduced draft vocabulary"),
        ({"rope_theta": REMOVED}, PROBLEM, "draft config", "rope_theta"),
        ({"sliding_window": 5}, WARNING, "window", "no layer slides"),
        ({"dflash_config": {"swa_window_size": 5}}, WARNING, "window", "swa_window_size"),
        ({"block_size": 1}, WARNING, "block_size", "1: one proposal"),
        ({"enable_confidence_head": False}, WARNING, "confidence head", "static mode"),
        ({"num_key_value_heads": 3}, PROBLEM, "draft config", "asked for a multiple of 3 KV heads"),
        ({"partial_rotary_factor": 0.25}, PROBLEM, "rotary_dim", "partial_rotary_factor 0.25"),
        ({"quantization_config": {"quant_method": "fp8"}}, WARNING, "quantisation", "(fp8)"),
    ],
)
def test_an_odd_draft(tmp_path: Path, change: dict[str, Any], level: Level, subject: str, said: str) -> None:
    raw = automodel(**change)
    folder = save_draft(tmp_path / "draft", automodel() if subject == "draft config" else raw)
    (folder / "config.json").write_text(json.dumps(raw))
    assert said in only(folder, save_target(tmp_path / "target"), level, subject)


def test_a_theta_in_both_places_is_the_tables(tmp_path: Path) -> None:
    """As the parser reads it: the flat key of an old save must not hide what the table says."""
    raw = automodel(rope_theta=1.0, rope_parameters={"rope_theta": 5e6, "partial_rotary_factor": 0.5})
    assert bad(save_draft(tmp_path / "draft", raw), save_target(tmp_path / "target")) == []


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_tensors_that_are_missing(tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", automodel())
    tensors = load_file(draft / "model.safetensors")
    del tensors["fc.weight"], tensors["norm.weight"]
    save_file(tensors, draft / "model.safetensors")
    found = bad(draft, save_target(tmp_path / "target"))
    assert {text for _, _, text in found} == {"tensor fc.weight: missing", "tensor norm.weight: missing"}


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
@pytest.mark.parametrize("row", [0, 99, slice(None)])
def test_a_table_that_was_trained(tmp_path: Path, name: str, row: Any) -> None:
    """The first and the last row are among the samples."""
    draft = save_draft(tmp_path / "draft", automodel())
    tensors = load_file(draft / "model.safetensors")
    tensors[name][row] += 1
    save_file(tensors, draft / "model.safetensors")
    assert "sampled rows are not the target's" in only(draft, save_target(tmp_path / "target"), PROBLEM, name)


@pytest.mark.parametrize(("ours", "theirs"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_copies_in_another_dtype(tmp_path: Path, ours: torch.dtype, theirs: torch.dtype) -> None:
    """AutoModel saves float32 beside a bf16 target; the values count, and rounding is no difference."""
    target = save_target(tmp_path / "target", dtype=theirs)
    draft = save_draft(tmp_path / "draft", automodel(), ours)
    assert bad(draft, target) == []
    tensors = load_file(draft / "model.safetensors")
    tensors["lm_head.weight"] *= 1.1
    save_file(tensors, draft / "model.safetensors")
    assert "differ from the target's by 10%" in only(draft, target, PROBLEM, "lm_head.weight")
    tensors["lm_head.weight"][0] = float("nan")
    save_file(tensors, draft / "model.safetensors")
    assert only(draft, target, PROBLEM, "lm_head.weight")


def test_a_draft_without_copies_borrows(tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", automodel())
    tensors = load_file(draft / "model.safetensors")
    save_file({k: t for k, t in tensors.items() if k not in tables()}, draft / "model.safetensors")
    findings = lint(draft, save_target(tmp_path / "target"))
    assert [found.text for found in findings][-2:] == ["borrowed from the target"] * 2


def test_tables_of_other_shapes_are_not_compared_row_by_row(tmp_path: Path) -> None:
    """Equal bytes where rows happen to lie alike would pass for a copy."""
    save_file({"a": torch.ones(4, 3), "b": torch.ones(8, 3)}, tmp_path / "x.safetensors")
    found = read_tensors(tmp_path).tensors
    assert difference(found["a"], found["b"]) == "shape [4, 3], the target's [8, 3]"


def test_one_row_and_no_row(tmp_path: Path) -> None:
    """Sampling divides by the rows between the first and the last."""
    for rows in (0, 1, 2):
        folder = tmp_path / str(rows)
        folder.mkdir()
        save_file(
            {"a": torch.ones(rows, 3), "b": torch.ones(rows, 3), "c": torch.zeros(rows, 3)}, folder / "x.safetensors"
        )
        found = read_tensors(folder).tensors
        assert difference(found["a"], found["b"]) is None
        assert (difference(found["a"], found["c"]) is None) is (rows == 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_a_quantised_lm_head_of_the_target(tmp_path: Path, dtype: torch.dtype) -> None:
    """Fault 14. The head's own method computes the logits, packed or not; they are not those of the training."""
    target = save_target(tmp_path / "target")
    names = json.loads((target / INDEX).read_text())["weight_map"]
    path = target / names["lm_head.weight"]
    tensors = load_file(path)
    tensors["lm_head.weight"] = torch.zeros(100, 48).to(dtype)
    save_file(tensors, path)
    text = only(save_draft(tmp_path / "draft", released()), target, WARNING, "lm_head.weight")
    assert "the draft computes its logits through the same quantised head" in text


def test_a_quantised_draft_without_its_config(tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", automodel())
    tensors = load_file(draft / "model.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, draft / "model.safetensors")
    assert "F8_E4M3 and no quantization_config" in only(draft, save_target(tmp_path / "t"), PROBLEM, "quantisation")


def test_a_target_without_its_tables(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    empty = save(tmp_path / "empty", config, {"model.norm.weight": torch.zeros(48)})
    found = bad(save_draft(tmp_path / "draft", released()), empty)
    assert [about for _, about, _ in found] == ["embed_tokens.weight", "lm_head.weight"]
    assert all(level is PROBLEM and "the draft borrows it" in text for level, _, text in found)


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_nothing_is_there(tmp_path: Path) -> None:
    """Doctor prints findings, not tracebacks; both sides are named."""
    found = bad(tmp_path / "no draft", tmp_path / "no target")
    assert {about for _, about, _ in found} == {"draft config", "draft tensors", "target config"}
    assert all(level is PROBLEM for level, _, _ in found)


def test_a_target_whose_weights_are_not_here(tmp_path: Path) -> None:
    """Everything that its config tells is still checked."""
    target = save_target(tmp_path / "target", rms_norm_eps=1e-5)
    for path in target.glob("*.safetensors"):
        path.unlink()
    found = bad(save_draft(tmp_path / "draft", released()), target)
    assert {(level, about) for level, about, _ in found} == {(PROBLEM, "target tensors"), (WARNING, "rms_norm_eps")}


def test_a_cut_draft(tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", released())
    path = draft / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "cannot be read" in only(draft, save_target(tmp_path / "target"), PROBLEM, "draft tensors")


def test_a_target_that_is_no_minimax_m3(tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", released())
    assert "asked for architectures" in only(draft, draft, PROBLEM, "target config")


def test_a_generation_config_that_cannot_be_read(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    (target / "generation_config.json").write_text("{")
    text = only(save_draft(tmp_path / "draft", released()), target, PROBLEM, "target config")
    assert text.startswith("generation_config.json cannot be read")
