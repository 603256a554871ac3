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
from sglang_dspark.checkpoints.keys import Keys, is_number, shown

MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")

# Far above any draft. A depth from a hostile config decides how many tensor names are made up and listed as missing.
MAX_LAYERS = 1000

_AT_LEAST_ONE = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("mlp_width", "max_position_embeddings", "num_target_layers"),
)


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
    architectures = [] if raw.get("architectures") is None else raw["architectures"]
    for layout in Layout:
        if architectures == [layout.value]:
            return layout
    known = " or ".join(f"{layout.value!r}" for layout in Layout)
    found = f"architectures {shown(architectures)}"
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
    if problem := _text_config_problem(raw, layout):
        raise CheckpointError(where, [problem])
    keys = Keys(flatten(raw))
    # Each from the table where SGLang looks for it: a merged one would let a stray key win.
    dflash, dspark = keys.table("dflash_config", False), keys.table("dspark_config", False)
    nested = {**dflash, **dspark}
    released = layout is Layout.RELEASED

    def draft_key(automodel_name: str, released_name: str) -> int:
        return keys.integer(released_name if released else automodel_name)

    if released:
        num_layers = keys.integer("num_hidden_layers", dflash, "dflash_config.")
        num_target_layers = keys.integer("num_target_layers", dflash, "dflash_config.")
        layer_ids = keys.integers("target_layer_ids", dflash, "dflash_config.")
        mlp_width = keys.integer("ffn_hidden_size", {"ffn_hidden_size": keys.get("dspark_ffn_hidden_size"), **dspark})
        _require_one_mlp(keys, dspark, mlp_width)
        markov_head_type = keys.word("dspark_markov_head_type", "vanilla").lower()  # SGLang's default too
    else:
        num_layers = keys.integer("num_hidden_layers")
        num_target_layers = keys.integer("num_target_layers")
        layer_ids = keys.integers("target_layer_ids")
        mlp_width = keys.integer("intermediate_size")
        markov_head_type = keys.word("markov_head_type").lower()

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
        enable_confidence_head=keys.flag("enable_confidence_head", True),
        confidence_head_with_markov=keys.flag("confidence_head_with_markov", True),
        quantized=bool(keys.table("quantization_config")),
    )
    _read_switches(keys, nested)
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


def _text_config_problem(raw: Mapping[str, Any], layout: Layout) -> str | None:
    text = raw.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        return f"text_config: asked for a table, found {shown(text)}"
    if text is not None and layout is Layout.AUTOMODEL:
        return "text_config: AutoModel's draft configs are flat, found a nested one; write its keys at the top level"
    return None


def _require_one_mlp(keys: Keys, dspark: Mapping[str, Any], width: int) -> None:
    """The released layout says two things twice, and readers differ in which they take: both must say the same."""
    again = keys.flag("dspark_use_dense_ffn", True)
    if not keys.flag("use_dense_ffn", "dspark_use_dense_ffn" in keys.values and again, dspark):
        keys.problem("dspark_use_dense_ffn: asked for true (the draft's MLP is dense), found false or nothing")
    elif not again:
        keys.problem("dspark_use_dense_ffn: found False, and True in dspark_config; keep the right one")
    name = "dspark_ffn_hidden_size"
    if "ffn_hidden_size" in dspark and name in keys.values and not _same(keys.values[name], width):
        keys.problem(f"{name}: found {shown(keys.values[name])}, and {width} in dspark_config; keep the right one")


def _read_switches(keys: Keys, nested: Mapping[str, Any]) -> None:
    """Note every switch that is no truth value, before `_unsupported` asks what it says."""
    for name, default, table in (
        ("use_gemma_norm", False, None),
        ("sample_from_anchor", True, None),
        ("causal", False, nested),
        ("use_swa", False, nested),
    ):
        keys.flag(name, default, table)
    for table in (keys.values, nested):
        types = table.get("layer_types")
        if types is not None and not (
            isinstance(types, (list, tuple)) and all(isinstance(kind, str) for kind in types)
        ):
            keys.problem(f"layer_types: asked for a list of words, found {shown(types)}")
    for name in ("swiglu_alpha", "swiglu_limit"):
        if not is_number(keys.get(name)):
            keys.problem(f"{name}: asked for a number, found {shown(keys.get(name))}; it is part of the activation")
    if "configuration_files" in keys.values:
        # transformers would read another file in this one's place, and serve a draft that was never checked.
        keys.problem("configuration_files: asked for one config.json, found a list of other ones; remove the key")


def _same(one: Any, other: Any) -> bool:
    """Equal, and of one type: True is not 1 here."""
    return type(one) is type(other) and bool(one == other)


def _value_problems(config: DraftConfig) -> list[str]:
    problems = []
    for name in _AT_LEAST_ONE:
        if getattr(config, name) < 1:
            problems.append(f"{name}: asked for at least 1, found {shown(getattr(config, name))}; fix the config")
    if config.num_layers > MAX_LAYERS:
        problems.append(
            f"num_hidden_layers: asked for at most {MAX_LAYERS} draft layers, found {shown(config.num_layers)}"
        )
    if config.num_key_value_heads > 0 and config.num_attention_heads % config.num_key_value_heads:
        problems.append(
            f"num_attention_heads: asked for a multiple of {config.num_key_value_heads} KV heads, "
            f"found {config.num_attention_heads}; fix the config"
        )
    if config.rope_theta <= 0:
        problems.append(f"rope_theta: asked for a number above 0, found {config.rope_theta}; write the trained one")
    if config.rms_norm_eps < 0:
        problems.append(f"rms_norm_eps: asked for a number from 0 up, found {config.rms_norm_eps}")
    if config.block_size < 1:
        problems.append(f"block_size: asked for at least 1 drafted token, found {config.block_size}; fix the config")
    elif config.block_size > config.max_position_embeddings:
        problems.append(
            f"block_size: asked for at most max_position_embeddings {config.max_position_embeddings}, "
            f"found {config.block_size}; fix the config"
        )
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
    found = f"found target_layer_ids {shown(list(ids))}"
    if not ids:
        return ["target_layer_ids: asked for at least one target layer, found none"]
    problems = []
    if -1 in ids:
        problems.append(f"{found}: -1 means the embedding, which the server cannot capture; retrain without it")
    out_of_range = [i for i in ids if i >= depth or i < -1]
    if out_of_range:
        problems.append(f"{found}: {shown(out_of_range)} are not layers of a target with {depth} (0 to {depth - 1})")
    if len(set(ids)) != len(ids):
        problems.append(f"{found}: each layer may stand there once")
    elif list(ids) != sorted(ids):
        problems.append(f"{found}: asked for ascending order, in which the target's layers are captured")
    if config.layout is Layout.AUTOMODEL and depth - 1 in ids:
        problems.append(
            f"{found}: {depth - 1} is the last layer, whose hidden state AutoModel's trainer takes after the final "
            "norm, while the server captures it before; retrain with earlier layers"
        )
    return problems


def _unsupported(keys: Keys, nested: Mapping[str, Any], released: bool) -> list[str]:
    """Keys that would change the network into one that is not served; each would lose acceptance silently."""
    problems = []

    def require(name: str, found: Any, wanted: Any, reason: str) -> None:
        if not _same(found, wanted):
            problems.append(f"{name}: asked for {wanted!r} ({reason}), found {shown(found)}")

    require("use_gemma_norm", keys.get("use_gemma_norm"), True, "every norm of the draft is a Gemma norm")
    require("qk_norm_type", keys.get("qk_norm_type"), "per_head", "q and k are normed per head")
    if (beta := keys.get("swiglu_beta", 1.0)) is True or beta != 1.0:
        problems.append(
            f"swiglu_beta: asked for 1.0 (the served activation adds 1 to the up half), found {shown(beta)}"
        )
    if keys.get("swiglu_limit") <= 0:
        problems.append(f"swiglu_limit: asked for a bound above 0, found {keys.get('swiglu_limit')}")
    if released:
        require("hidden_act", keys.get("hidden_act"), "swigluoai", "the draft's MLP is SwiGLU-OAI")
    require("causal", nested.get("causal", False), False, "rows of a draft block see each other")
    require("sample_from_anchor", keys.get("sample_from_anchor", True), True, "the anchor row drafts the first token")
    if keys.get("d2t") is not None or keys.get("draft_vocab_size") not in (None, keys.get("vocab_size")):
        problems.append("draft_vocab_size / d2t: a reduced draft vocabulary is not supported")
    layer_types = nested.get("layer_types") or (keys.get("layer_types") if not released else None) or []
    if "sliding_attention" in layer_types or nested.get("use_swa"):
        problems.append("layer_types / use_swa: sliding-window draft layers are not supported")
    return problems
