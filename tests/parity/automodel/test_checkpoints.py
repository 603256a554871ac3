"""Checkpoints cross over: what either saves the other loads, and the config is the one AutoModel writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from nemo_automodel.components.models.minimax_m3_vl.config import MiniMaxM3VLTextConfig
from nemo_automodel.components.speculative.decode_eval import export_draft_snapshot
from nemo_automodel.components.speculative.dspark.draft_minimax_m3 import MiniMaxM3DSparkModel as Peer
from safetensors.torch import load_file

from sglang_dspark.reference import from_checkpoint, save_checkpoint

from .peers import both, namespace


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_ours_reads_what_automodel_exports(tmp_path, head):
    peer, _ = both(markov_head_type=head)
    folder = export_draft_snapshot(peer, str(tmp_path))
    ours = from_checkpoint(folder)
    wanted = peer.state_dict()
    assert ours.state_dict().keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.state_dict().items())


def test_what_we_save_is_what_automodel_would(tmp_path):
    """Config and tensors, key by key. `torch_dtype` is ours: servers read the weights' type from it."""
    peer, _ = both()
    exported = Path(export_draft_snapshot(peer, str(tmp_path / "theirs")))
    save_checkpoint(from_checkpoint(exported), tmp_path / "ours")
    theirs, mine = (json.loads((folder / "config.json").read_text()) for folder in (exported, tmp_path / "ours"))
    assert mine.pop("torch_dtype") == "float32"
    assert mine == theirs
    saved, wanted = (load_file(folder / "model.safetensors") for folder in (tmp_path / "ours", exported))
    assert saved.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in saved.items())


@pytest.mark.parametrize("as_transformers_config", [True, False])
def test_automodel_loads_what_we_save(tmp_path, as_transformers_config):
    _, ours = both(markov_head_type="gated")
    save_checkpoint(ours, tmp_path / "draft")
    table = json.loads((tmp_path / "draft" / "config.json").read_text())
    config = MiniMaxM3VLTextConfig(**table) if as_transformers_config else namespace(table)
    config._attn_implementation = "sdpa"
    peer = Peer(config)
    peer.load_state_dict(load_file(tmp_path / "draft" / "model.safetensors"), strict=True)
    assert (peer.block_size, peer.num_anchors, list(peer.target_layer_ids)) == (5, 6, [0, 2, 3])
