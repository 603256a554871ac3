"""The target a draft belongs to: its text config, its shape, and where its embedding and LM head lie.

Its own tensors are many; only the two tables' files are opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints.config import TargetFacts
from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.files import read_config, read_tensors
from sglang_dspark.checkpoints.headers import StoredTensor
from sglang_dspark.checkpoints.keys import shown
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET

TARGET_ARCHITECTURES = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")

EMBEDDING, LM_HEAD = SHARED_WITH_TARGET

# The tables' names in a text-only checkpoint, in MiniMax's vision-language one, and in transformers' spelling of that.
_NAMES = {
    EMBEDDING: (
        "model.embed_tokens.weight",
        "language_model.model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
    ),
    LM_HEAD: ("lm_head.weight", "language_model.lm_head.weight", "model.language_model.lm_head.weight"),
}


@dataclass(frozen=True)
class Target:
    """A target's folder, read as far as a draft depends on it."""

    folder: Path
    model_type: str
    text_config: Mapping[str, Any]
    facts: TargetFacts

    @property
    def tied(self) -> bool:
        """Whether its embedding is its LM head."""
        return bool(self.text_config.get("tie_word_embeddings"))

    def tables(self) -> dict[str, StoredTensor]:
        """The embedding and the LM head, by the draft's names for them; what is not found is left out.

        Raises:
            CheckpointError: the files that should hold them are missing or damaged.
        """
        wanted = {name for names in _NAMES.values() for name in names}
        stored = read_tensors(self.folder, "target", lambda name: name in wanted).tensors
        found: dict[str, StoredTensor] = {}
        for table, names in _NAMES.items():
            places = [stored[name] for name in names if name in stored]
            if len(places) > 1:
                problem = f"asked for one {table}, found {len(places)} under different names; keep one"
                raise CheckpointError(str(self.folder), [problem], "target")
            found.update({table: places[0]} if places else {})
        if self.tied and EMBEDDING in found and LM_HEAD not in found:
            found[LM_HEAD] = found[EMBEDDING]
        return found


def read_target(folder: Path) -> Target:
    """Read a target's config.

    Raises:
        CheckpointError: it is no MiniMax-M3, or lacks what a draft must agree with.
    """
    raw = read_config(folder, "target")
    architectures = raw.get("architectures")
    if not is_target(raw):
        known = " or ".join(TARGET_ARCHITECTURES)
        problem = (
            f"asked for architectures {known}, found {shown(architectures)}; pass the MiniMax-M3 this draft belongs to"
        )
        raise CheckpointError(str(folder), [problem], "target")
    text = raw.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise CheckpointError(str(folder), [f"text_config: asked for a table, found {shown(text)}"], "target")
    # Also where the wrapper alone says it: tie_word_embeddings, the special tokens, quantization_config.
    flat = {**raw, **text}
    sizes = {}
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        sizes[key] = flat.get(key)
    problems = [
        f"{key}: asked for a whole number, found {shown(value)}"
        for key, value in sizes.items()
        if type(value) is not int
    ]
    if problems:
        raise CheckpointError(str(folder), problems, "target")
    facts = TargetFacts(flat["num_hidden_layers"], flat["hidden_size"], flat["vocab_size"])
    return Target(folder, str(raw.get("model_type") or "minimax_m3_vl"), flat, facts)


def is_target(raw: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a MiniMax-M3 target."""
    architectures = raw.get("architectures")
    return isinstance(architectures, list) and len(architectures) == 1 and architectures[0] in TARGET_ARCHITECTURES
