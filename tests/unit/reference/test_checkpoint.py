"""Both layouts in, layout A out; nothing half read and nothing half written."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_dspark.checkpoints import CheckpointError, parse_draft_config
from sglang_dspark.demo import build
from sglang_dspark.reference import checkpoint, from_checkpoint, save_checkpoint
from tests.unit.reference.pairs import small_spec


@pytest.fixture
def pair(tmp_path):
    return build(tmp_path / "automodel", spec=small_spec())


@pytest.fixture
def other(tmp_path):
    """The same draft in the released layout."""
    return build(tmp_path / "released", layout="released", spec=small_spec())


def tables(pair) -> dict[str, torch.Tensor]:
    target = load_file(pair.target / "model.safetensors")
    return {"embed_tokens.weight": target["model.embed_tokens.weight"], "lm_head.weight": target["lm_head.weight"]}


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def edit(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_both_layouts_are_one_draft(tmp_path, head) -> None:
    pairs = [
        build(tmp_path / layout, layout=layout, spec=small_spec(markov_head_type=head))
        for layout in ("automodel", "released")
    ]
    first, second = from_checkpoint(pairs[0].draft), from_checkpoint(pairs[1].draft, tables(pairs[1]))
    assert same(first.state_dict(), second.state_dict())
    assert first.block_size == second.block_size and first.target_layer_ids == second.target_layer_ids


def test_read_in_evaluation_mode_with_frozen_tables_and_every_weight_set(pair) -> None:
    draft = from_checkpoint(pair.draft)
    assert not draft.training and not draft.lm_head.weight.requires_grad and draft.fc.weight.requires_grad
    assert draft.fc.weight.dtype == torch.float32
    stored = load_file(pair.draft / "model.safetensors")
    assert same(draft.state_dict(), {name: tensor.float() for name, tensor in stored.items()})
    half = from_checkpoint(pair.draft, dtype=torch.bfloat16)
    assert same(half.state_dict(), stored) and half.rotary_emb.inverse_frequencies.dtype == torch.float32


def test_saving_a_draft_gives_back_its_files(pair, tmp_path) -> None:
    save_checkpoint(from_checkpoint(pair.draft, dtype=torch.bfloat16), tmp_path / "saved")
    first, second = (load_file(folder / "model.safetensors") for folder in (pair.draft, tmp_path / "saved"))
    assert same(first, second)
    first, second = (json.loads((folder / "config.json").read_text()) for folder in (pair.draft, tmp_path / "saved"))
    assert first == second


def test_a_released_draft_is_saved_as_automodel_s(pair, other, tmp_path) -> None:
    save_checkpoint(from_checkpoint(other.draft, tables(other), dtype=torch.bfloat16), tmp_path / "saved")
    assert same(*(load_file(folder / "model.safetensors") for folder in (pair.draft, tmp_path / "saved")))
    saved, wanted = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "saved", pair.draft))
    assert parse_draft_config(saved, "saved") == parse_draft_config(wanted, "wanted")
    assert {key: saved[key] for key in wanted} == wanted


def test_a_draft_in_shards_is_read_by_its_index(pair) -> None:
    tensors = load_file(pair.draft / "model.safetensors")
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, pair.draft / file)
    index = {name: file for file, part in halves.items() for name in part}
    (pair.draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    # No longer named by anything; a reader of *.safetensors would take it for the draft.
    edit(pair.draft, lambda stale: stale["fc.weight"].zero_())
    draft = from_checkpoint(pair.draft)
    assert same(draft.state_dict(), {name: tensor.float() for name, tensor in tensors.items()})


def test_everything_wrong_with_the_tensors_at_once(pair) -> None:
    def change(tensors) -> None:
        del tensors["norm.weight"]
        tensors["fc.weight"] = tensors["fc.weight"][:, :-1].contiguous()
        tensors["surplus.weight"] = torch.zeros(1)

    edit(pair.draft, change)
    with pytest.raises(CheckpointError) as error:
        from_checkpoint(pair.draft)
    assert len(error.value.problems) == 3
    for part in ("norm.weight: missing", "fc.weight: asked for shape", "surplus.weight: unexpected"):
        assert part in str(error.value)


def test_a_released_draft_needs_the_target_s_tables(other) -> None:
    with pytest.raises(CheckpointError, match="pass the target's in target_tables") as error:
        from_checkpoint(other.draft)
    assert len(error.value.problems) == 2
    wrong = tables(other) | {"lm_head.weight": torch.zeros(3, 3), "norm.weight": torch.zeros(32)}
    with pytest.raises(CheckpointError) as error:
        from_checkpoint(other.draft, wrong)
    assert len(error.value.problems) == 2
    assert "found [3, 3]" in str(error.value) and "norm.weight" in str(error.value)


def test_an_automodel_draft_without_its_tables_is_named(pair) -> None:
    edit(pair.draft, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match="tensor lm_head.weight: the checkpoint has none"):
        from_checkpoint(pair.draft)


def test_tables_that_are_passed_replace_the_checkpoint_s(pair) -> None:
    draft = from_checkpoint(pair.draft, {"lm_head.weight": torch.ones(11, 32)})
    assert (draft.lm_head.weight == 1).all()


def test_a_truncated_file_is_an_error(pair) -> None:
    path = pair.draft / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        from_checkpoint(pair.draft)


def test_a_quantised_draft_is_refused(pair) -> None:
    path = pair.draft / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(CheckpointError, match="reads plain weights only"):
        from_checkpoint(pair.draft)


def test_a_failed_save_leaves_the_old_draft(pair, tmp_path, monkeypatch) -> None:
    draft = from_checkpoint(pair.draft)
    folder = tmp_path / "saved"
    shutil.copytree(pair.draft, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_, **__) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(draft, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not list(tmp_path.glob(".saved*"))


def test_saving_twice_replaces_the_folder(pair, tmp_path) -> None:
    draft = from_checkpoint(pair.draft)
    save_checkpoint(draft, tmp_path / "saved")
    (tmp_path / "saved" / "old.safetensors").write_bytes(b"stale")
    save_checkpoint(draft, tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["config.json", "model.safetensors"]
