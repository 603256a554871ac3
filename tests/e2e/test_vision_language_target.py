"""The vision-language wrapper, which the released MiniMax-M3 checkpoints carry, as a target.

Text requests only: images need operations that SGLang's CPU engine does not have.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from sglang_dspark.demo import DemoPair
from tests.e2e.serving import Answer, accepted_length, ask_engine

pytestmark = pytest.mark.e2e

# CLIP-like, as small as the tower allows; its weights play no part in text.
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 56,
    "patch_size": 14,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
    "position_embedding_type": "rope",
    "rope_mode": "3d",
    "rope_theta": 10000.0,
    "vision_segment_max_frames": 4,
}


def vision_language_checkpoint(target: Path, folder: Path) -> Path:
    """The text target's weights under the wrapper's names, beside an untrained vision tower."""
    shutil.copytree(target, folder)
    text = json.loads((target / "config.json").read_text())
    architectures = ["MiniMaxM3SparseForConditionalGeneration"]
    # The released checkpoints' text part says minimax_m2, which transformers does not know either.
    text |= {"model_type": "minimax_m2", "architectures": ["MiniMaxM3SparseForCausalLM"]}
    config = {"model_type": "minimax_m3_vl", "architectures": architectures, "text_config": text}
    (folder / "config.json").write_text(json.dumps(config | {"vision_config": VISION}))
    tensors = load_file(target / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_text_requests(pair: DemoPair, texts: list[str], plain_answers: list[Answer], tmp_path: Path) -> None:
    """The same weights in the wrapper give the text-only target's tokens, and the draft reads the same features."""
    wrapped = DemoPair(vision_language_checkpoint(pair.target, tmp_path / "target"), pair.draft)
    found = ask_engine(wrapped, texts[:24], tmp_path, enable_multimodal=False)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain_answers[:24]]
    assert accepted_length(found) > 2
