"""Where a draft's lessons come from: any target that gives its hidden states, behind one small interface.

A MiniMax-M3 text checkpoint with SGLang's names is read by this package's own module, anything else by transformers.
Layer i's features are the residual stream after layer i, before any norm (transformers' `hidden_states[i + 1]`; its
last entry is the normed one, which is why the last layer cannot be a feature). `reference.Target` is one sequence of a
target that verifies; this is many at once, and nothing is taken back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from sglang_dspark.checkpoints import read_config
from sglang_dspark.train.target_files import load_text_model
from sglang_dspark.train.target_model import KeyValueCache, TextModel

OWN_ARCHITECTURE = "MiniMaxM3SparseForCausalLM"


class Teacher(Protocol):
    """A frozen language model."""

    config: Mapping[str, Any]
    embed_tokens: nn.Embedding
    lm_head: nn.Linear
    fingerprint: str

    def new_cache(self) -> Any:
        """An empty cache for one batch."""

    def run(self, tokens: torch.Tensor, cache: Any | None) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        """The new tokens [B, T]: each layer's output [B, T, H], and the last hidden state [B, T, H], normed."""


class MiniMaxM3Teacher:
    """This package's own model."""

    def __init__(self, model: TextModel, fingerprint: str) -> None:
        self.model = model
        self.config: Mapping[str, Any] = model.config
        self.embed_tokens, self.lm_head, self.fingerprint = model.embed_tokens, model.lm_head, fingerprint

    def new_cache(self) -> KeyValueCache:
        """An empty cache for one batch."""
        return KeyValueCache()

    def run(self, tokens: torch.Tensor, cache: KeyValueCache | None) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        """See `Teacher.run`."""
        with torch.no_grad():
            output = self.model(tokens, cache)
        return output.layer_outputs, output.last_hidden


class HuggingFaceTeacher:
    """A causal language model of transformers."""

    def __init__(self, model: Any, fingerprint: str) -> None:
        self.model = model.eval()
        text = model.config.get_text_config()
        self.config: Mapping[str, Any] = text.to_dict()
        self.embed_tokens: nn.Embedding = model.get_input_embeddings()
        self.lm_head: nn.Linear = model.get_output_embeddings()
        self.fingerprint = fingerprint

    def new_cache(self) -> Any:
        """An empty cache for one batch."""
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config.get_text_config())

    def run(self, tokens: torch.Tensor, cache: Any | None) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        """See `Teacher.run`."""
        with torch.no_grad():
            output = self.model(tokens, past_key_values=cache, use_cache=cache is not None, output_hidden_states=True)
        states = output.hidden_states
        return states[1:], states[-1]


def load_teacher(folder: Path) -> Teacher:
    """The target in `folder`, in float32."""
    config = read_config(folder)
    fingerprint = _fingerprint(folder)
    if config.get("architectures") == [OWN_ARCHITECTURE] and "text_config" not in config:
        return MiniMaxM3Teacher(load_text_model(folder), fingerprint)
    from transformers import AutoModelForCausalLM

    return HuggingFaceTeacher(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), fingerprint)


def _fingerprint(folder: Path) -> str:
    """Names the weights: features of one target are worthless to a draft of another, and nothing else would tell."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
