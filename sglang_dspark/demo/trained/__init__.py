"""The demo pair that has learnt: a small MiniMax-M3 that writes Python-like text, and a DSpark draft that guesses it.

Only weights and tokenizer lie here; `scripts/train_demo.py` made them and makes them again (docs/training.md). The
draft's file has neither embedding nor LM head: both are the target's, and `layouts` adds them where a layout wants
copies. The constructed pairs remain for tests, which need pairs of many kinds in no time.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import load

from sglang_dspark.demo.spec import DemoSpec

FOLDER = Path(__file__).parent
TARGET_NAME, DRAFT_NAME, TOKENIZER_NAME = "target.safetensors", "draft.safetensors", "tokenizer.json"
DIGESTS_NAME = "digests.json"

SPEC = DemoSpec.text(
    name="trained",
    vocab_size=1024,
    hidden_size=192,
    head_dim=64,
    rotary_dim=32,
    rope_theta=1e4,
    # Trained on 256 tokens; what comes after is served, and gets worse.
    max_position_embeddings=2048,
    moe_layers=(0, 1, 1),
    sparse_layers=(0, 1, 0),
    intermediate_size=128,
    dense_intermediate_size=512,
    sparse_topk_blocks=8,
    # transformers' MiniMax-M3 has no first blocks that always win: without them it computes the same function.
    sparse_init_blocks=0,
    target_layer_ids=(0, 1),
    draft_intermediate_size=384,
    markov_rank=128,
)


@dataclass(frozen=True)
class TrainedWeights:
    """What the checkpoints are written from."""

    target: dict[str, torch.Tensor]
    draft: dict[str, torch.Tensor]
    tokenizer: tokenizers.Tokenizer


def read(spec: DemoSpec) -> TrainedWeights:
    """The weights that came with this package.

    Raises:
        ValueError: another spec than `SPEC`, or a file that is missing or changed.
    """
    if spec != SPEC:
        raise ValueError("the trained pair has the sizes it was trained with: take trained.SPEC as it is, or build")
    content = {name: _read(name) for name in (TARGET_NAME, DRAFT_NAME, TOKENIZER_NAME)}
    return TrainedWeights(
        load(content[TARGET_NAME]),
        load(content[DRAFT_NAME]),
        tokenizers.Tokenizer.from_str(content[TOKENIZER_NAME].decode("utf-8")),
    )


def digests() -> dict[str, str]:
    """What each file's SHA-256 must be."""
    found: dict[str, str] = json.loads((FOLDER / DIGESTS_NAME).read_text())
    return found


def _read(name: str) -> bytes:
    path = FOLDER / name
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != digests()[name]:
        raise ValueError(
            f"asked for the demo's {name} as it was published, found {path} missing or changed: install the package "
            "again, or run scripts/train_demo.py"
        )
    return content
