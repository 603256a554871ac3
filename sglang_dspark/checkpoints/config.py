"""One description of a draft, whichever layout its `config.json` is written in.

Layout A is what NVIDIA AutoModel exports (a copy of the target's text config plus flat draft keys), layout B what
MiniMax released with M3.1 (`dspark_*` keys and nested `dspark_config` / `dflash_config`). A wrong value here never
raises later: acceptance just collapses. So nothing is defaulted silently, and every problem is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sglang_dspark.checkpoints.errors import CheckpointError

MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")


class Layout(Enum):
    """A checkpoint layout; the value is the architecture name its config carries."""

    AUTOMODEL = "MiniMaxM3DSparkModel"
    RELEASED = "DSparkMiniMaxDraftModel"


@dataclass(frozen=True)
class TargetFacts:
    """What a draft must agree with: the target's shape, from its text config."""

    num_layers: int
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True)
class DraftConfig:
    """A DSpark draft of MiniMax-M3, independent of its layout. Sizes are in elements, ids 0-based."""

    layout: Layout
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    mlp_width: int
    vocab_size: int
    max_position_embeddings: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    markov_rank: int
    markov_head_type: str
    enable_confidence_head: bool
    confidence_head_with_markov: bool
    quantized: bool

    def problems_with_target(self, target: TargetFacts) -> list[str]:
        """What keeps this draft from drafting for `target`; empty when nothing does."""
        problems = []
        for name, asked, found in (
            ("hidden_size", target.hidden_size, self.hidden_size),
            ("vocab_size", target.vocab_size, self.vocab_size),
            ("num_target_layers", target.num_layers, self.num_target_layers),
        ):
            if asked != found:
                problems.append(
                    f"{name}: the target has {asked}, the draft was made for {found}; use the draft that belongs to "
                    "this target"
                )
        return problems

    def problems_with_tensor_parallel(self, tp_size: int) -> list[str]:
        """What keeps this draft from being split over `tp_size` ranks; empty when nothing does."""
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        problems = []
        if heads % tp_size:
            problems.append(f"tensor parallel {tp_size} does not divide the draft's {heads} attention heads")
        if max(kv_heads, tp_size) % min(kv_heads, tp_size):
            problems.append(f"tensor parallel {tp_size} neither divides nor is divided by {kv_heads} KV heads")
        for name, width in (("hidden_size", self.hidden_size), ("MLP width", self.mlp_width)):
            if width % tp_size:
                problems.append(f"tensor parallel {tp_size} does not divide the draft's {name} {width}")
        return [f"{problem}; choose a --tp-size that does" for problem in problems]


def detect_layout(raw: Mapping[str, Any], where: str) -> Layout:
    """The layout of a `config.json`, by its architecture.

    Raises:
        CheckpointError: it is neither layout; speculators and ModelOpt exports are named as such.
    """
    architectures = list(raw.get("architectures") or [])
    for layout in Layout:
        if architectures == [layout.value]:
            return layout
    known = " or ".join(f"{layout.value!r}" for layout in Layout)
    found = f"architectures {architectures}"
    if "speculators_config" in raw or "transformer_layer_config" in raw:
        found += " and speculators' own keys (transformer_layer_config); that layout is not supported"
    elif "hf_quant_config" in raw or "modelopt_version" in raw:
        found += " and ModelOpt's own keys; that layout is not supported"
    raise CheckpointError(
        where, [f"asked for architectures [{known}], found {found}; pass a draft in AutoModel's or the released layout"]
    )


def parse_draft_config(raw: Mapping[str, Any], where: str) -> DraftConfig:
    """Read a draft's `config.json` (already parsed) of either layout.

    Args:
        raw: the JSON object.
        where: its path or repository, for messages.

    Raises:
        CheckpointError: with every key that is missing or cannot be served, at once.
    """
    layout = detect_layout(raw, where)
    keys = _Keys(flatten(raw))
    nested = {**keys.table("dflash_config"), **keys.table("dspark_config")}
    released = layout is Layout.RELEASED

    def draft_key(automodel_name: str, released_name: str) -> int:
        return keys.integer(released_name if released else automodel_name)

    if released:
        num_layers = keys.integer("num_hidden_layers", nested, "dflash_config.")
        num_target_layers = keys.integer("num_target_layers", nested, "dflash_config.")
        layer_ids = keys.integers("target_layer_ids", nested, "dflash_config.")
        mlp_width = keys.integer("ffn_hidden_size", {"ffn_hidden_size": keys.get("dspark_ffn_hidden_size"), **nested})
        if not nested.get("use_dense_ffn", keys.get("dspark_use_dense_ffn")):
            keys.problem("dspark_use_dense_ffn: asked for true (the draft's MLP is dense), found false or nothing")
        markov_head_type = str(keys.get("dspark_markov_head_type") or "vanilla").lower()
    else:
        num_layers = keys.integer("num_hidden_layers")
        num_target_layers = keys.integer("num_target_layers")
        layer_ids = keys.integers("target_layer_ids")
        mlp_width = keys.integer("intermediate_size")
        markov_head_type = str(keys.get("markov_head_type") or "").lower()

    config = DraftConfig(
        layout=layout,
        num_layers=num_layers,
        hidden_size=keys.integer("hidden_size"),
        num_attention_heads=keys.integer("num_attention_heads"),
        num_key_value_heads=keys.integer("num_key_value_heads"),
        head_dim=keys.integer("head_dim"),
        rotary_dim=keys.integer("rotary_dim"),
        rope_theta=keys.number("rope_theta", {"rope_theta": keys.get("rope_theta"), **keys.table("rope_parameters")}),
        rms_norm_eps=keys.number("rms_norm_eps"),
        mlp_width=mlp_width,
        vocab_size=keys.integer("vocab_size"),
        max_position_embeddings=keys.integer("max_position_embeddings"),
        block_size=draft_key("block_size", "dspark_block_size"),
        mask_token_id=draft_key("mask_token_id", "dspark_noise_token_id"),
        target_layer_ids=layer_ids,
        num_target_layers=num_target_layers,
        markov_rank=draft_key("markov_rank", "dspark_markov_rank"),
        markov_head_type=markov_head_type,
        enable_confidence_head=bool(keys.get("enable_confidence_head", True)),
        confidence_head_with_markov=bool(keys.get("confidence_head_with_markov", True)),
        quantized=bool(keys.get("quantization_config")),
    )
    problems = keys.problems
    # With a key missing, every check that reads it would only repeat that.
    if not problems:
        problems = _value_problems(config) + _unsupported(keys, nested, released)
    if problems:
        raise CheckpointError(where, problems)
    return config


def flatten(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Text-config keys and top-level keys in one table; `dspark_*` belongs to the top level where both have it."""
    text = raw.get("text_config") or {}
    draft = {key: value for key, value in raw.items() if key.startswith("dspark_")}
    return {**raw, **text, **draft}


def _value_problems(config: DraftConfig) -> list[str]:
    problems = []
    if config.block_size < 1:
        problems.append(f"block_size: asked for at least 1 drafted token, found {config.block_size}; fix the config")
    if not 0 <= config.mask_token_id < config.vocab_size:
        problems.append(
            f"mask_token_id: asked for an id in [0, {config.vocab_size}), found {config.mask_token_id}; "
            "write the id the draft was trained with"
        )
    if config.markov_rank < 1:
        problems.append(
            f"markov_rank: asked for at least 1 (a DSpark draft has a Markov head), found {config.markov_rank}"
        )
    if config.markov_head_type not in MARKOV_HEAD_TYPES:
        problems.append(
            f"markov_head_type: asked for one of {', '.join(MARKOV_HEAD_TYPES)}, found {config.markov_head_type!r}"
        )
    if config.num_layers < 1:
        problems.append(f"num_hidden_layers: asked for at least 1 draft layer, found {config.num_layers}")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        problems.append(
            f"rotary_dim: asked for an even number up to head_dim {config.head_dim}, found {config.rotary_dim}"
        )
    return problems + _layer_id_problems(config)


def _layer_id_problems(config: DraftConfig) -> list[str]:
    ids, depth = config.target_layer_ids, config.num_target_layers
    shown = f"found target_layer_ids {list(ids)}"
    if not ids:
        return ["target_layer_ids: asked for at least one target layer, found none"]
    problems = []
    if -1 in ids:
        problems.append(f"{shown}: -1 means the embedding, which the server cannot capture; retrain without it")
    out_of_range = [i for i in ids if i >= depth or i < -1]
    if out_of_range:
        problems.append(f"{shown}: {out_of_range} are not layers of a target with {depth} (0 to {depth - 1})")
    if len(set(ids)) != len(ids):
        problems.append(f"{shown}: each layer may stand there once")
    elif list(ids) != sorted(ids):
        problems.append(f"{shown}: asked for ascending order, in which the target's layers are captured")
    if config.layout is Layout.AUTOMODEL and depth - 1 in ids:
        problems.append(
            f"{shown}: {depth - 1} is the last layer, whose hidden state AutoModel's trainer takes after the final "
            "norm, while the server captures it before; retrain with earlier layers"
        )
    return problems


def _unsupported(keys: _Keys, nested: Mapping[str, Any], released: bool) -> list[str]:
    """Keys that would change the network into one that is not served; each would lose acceptance silently."""
    problems = []

    def require(name: str, found: Any, wanted: Any, reason: str) -> None:
        if found != wanted:
            problems.append(f"{name}: asked for {wanted!r} ({reason}), found {found!r}")

    require("use_gemma_norm", keys.get("use_gemma_norm"), True, "every norm of the draft is a Gemma norm")
    require("qk_norm_type", keys.get("qk_norm_type"), "per_head", "q and k are normed per head")
    require("swiglu_beta", float(keys.get("swiglu_beta", 1.0)), 1.0, "the served activation adds 1 to the up half")
    for name in ("swiglu_alpha", "swiglu_limit"):
        if not isinstance(keys.get(name), (int, float)):
            problems.append(f"{name}: asked for a number, found {keys.get(name)!r}; it is part of the activation")
    if released:
        require("hidden_act", keys.get("hidden_act"), "swigluoai", "the draft's MLP is SwiGLU-OAI")
    require("causal", bool(nested.get("causal", False)), False, "rows of a draft block see each other")
    require("sample_from_anchor", keys.get("sample_from_anchor", True), True, "the anchor row drafts the first token")
    if keys.get("d2t") or keys.get("draft_vocab_size") not in (None, keys.get("vocab_size")):
        problems.append("draft_vocab_size / d2t: a reduced draft vocabulary is not supported")
    layer_types = nested.get("layer_types") or (keys.get("layer_types") if not released else None) or []
    if "sliding_attention" in layer_types or nested.get("use_swa"):
        problems.append("layer_types / use_swa: sliding-window draft layers are not supported")
    return problems


class _Keys:
    """Typed look-ups that collect what is missing instead of stopping at the first."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def table(self, name: str) -> dict[str, Any]:
        found = self.values.get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            self.problem(f"{name}: asked for a table, found {found!r}")
            return {}
        return dict(found)

    def integer(self, name: str, table: Mapping[str, Any] | None = None, prefix: str = "") -> int:
        found = (self.values if table is None else table).get(name)
        if isinstance(found, bool) or not isinstance(found, int):
            self.problem(f"{prefix}{name}: asked for a whole number, found {found!r}")
            return 0
        return found

    def number(self, name: str, table: Mapping[str, Any] | None = None) -> float:
        found = (self.values if table is None else table).get(name)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            self.problem(f"{name}: asked for a number, found {found!r}")
            return 0.0
        return float(found)

    def integers(self, name: str, table: Mapping[str, Any] | None = None, prefix: str = "") -> tuple[int, ...]:
        found = (self.values if table is None else table).get(name)
        if not isinstance(found, (list, tuple)) or not all(type(item) is int for item in found):
            self.problem(f"{prefix}{name}: asked for a list of whole numbers, found {found!r}")
            return ()
        return tuple(found)
