"""A draft held against its target: what fits, what is odd, and what cannot work.

A draft that does not belong to its target raises nothing when it is served: its proposals are refused, and only the
speed tells. Each check here is a mismatch that has been shipped somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints.config import DraftConfig, Layout, flatten, parse_draft_config
from sglang_dspark.checkpoints.errors import CheckpointError, printable
from sglang_dspark.checkpoints.files import INDEX_NAME, read_config, read_tensors
from sglang_dspark.checkpoints.headers import StoredTensor
from sglang_dspark.checkpoints.keys import is_number, shown
from sglang_dspark.checkpoints.tables import difference
from sglang_dspark.checkpoints.target import LM_HEAD, Target, read_target
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET, account

_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, and what to do where it is not well."""

    level: Level
    subject: str
    text: str


@dataclass(frozen=True)
class _Pair:
    """Both sides, read; `keys` is the draft's config flattened, as its own parser sees it."""

    draft: DraftConfig
    keys: Mapping[str, Any]
    tensors: dict[str, StoredTensor]
    target: Target
    tables: dict[str, StoredTensor]
    generation: Mapping[str, Any]


def lint(draft_folder: Path, target_folder: Path) -> list[Finding]:
    """Every finding about a draft and the target it is to draft for.

    What cannot be read is a finding too: nothing is raised for a bad checkpoint.
    """
    findings: list[Finding] = []

    def attempt(subject: str, read: Any) -> Any:
        try:
            return read()
        except CheckpointError as error:
            findings.extend(Finding(Level.PROBLEM, subject, problem) for problem in error.problems)
            return None

    raw = attempt("draft config", lambda: read_config(draft_folder))
    draft = attempt("draft config", lambda: parse_draft_config(raw, str(draft_folder))) if raw is not None else None
    stored = attempt("draft tensors", lambda: read_tensors(draft_folder))
    target = attempt("target config", lambda: read_target(target_folder))
    tables = attempt("target tensors", target.tables) if target is not None else None
    if draft is not None and stored is not None:
        findings += _accounting(draft, stored.tensors)
    if draft is None or target is None:
        return findings
    generation: Mapping[str, Any] = {}
    if (target_folder / "generation_config.json").exists():
        name = "generation_config.json"
        generation = attempt("target config", lambda: read_config(target_folder, "target", name)) or {}
    pair = _Pair(draft, flatten(raw), stored.tensors if stored else {}, target, tables or {}, generation)
    for check in (_sizes, _layers, _mask_token, _rotary, _norms, _window, _block, _heads, _quantization):
        findings += check(pair)
    return findings + (list(_shared_tables(pair)) if tables is not None else [])


def _ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, printable(text))


def _warning(subject: str, text: str) -> Finding:
    return Finding(Level.WARNING, subject, printable(text))


def _problem(subject: str, text: str) -> Finding:
    return Finding(Level.PROBLEM, subject, printable(text))


def _accounting(draft: DraftConfig, tensors: Mapping[str, StoredTensor]) -> list[Finding]:
    problems = account(draft, {name: tensor.shape for name, tensor in tensors.items()})
    if problems:
        return [_problem("draft tensors", problem) for problem in problems]
    return [_ok("draft tensors", f"all {len(tensors)} accounted for, names and shapes")]


def _sizes(pair: _Pair) -> Iterator[Finding]:
    problems = pair.draft.problems_with_target(pair.target.facts)
    yield from (_problem(*problem.split(": ", 1)) for problem in problems)
    failed = {problem.split(":")[0] for problem in problems}
    for name in ("hidden_size", "vocab_size", "num_target_layers"):
        if name not in failed:
            yield _ok(name, f"{getattr(pair.draft, name)}, as the target's")
    ours, theirs = pair.draft.max_position_embeddings, pair.target.text_config.get("max_position_embeddings")
    if isinstance(theirs, int) and ours < theirs:
        yield _warning(
            "positions", f"the draft's reach to {ours}, the target's to {theirs}; serve with --context-length {ours}"
        )
    else:
        yield _ok("positions", f"up to {ours}")


def _layers(pair: _Pair) -> Iterator[Finding]:
    ids, depth = list(pair.draft.target_layer_ids), pair.target.facts.num_layers
    outside = [i for i in ids if i >= depth]
    if outside:
        yield _problem(
            "target_layer_ids",
            f"{outside} of {ids} are not layers of a target with {depth}; use the draft's own target",
        )
    else:
        yield _ok("target_layer_ids", f"{ids} of {depth} layers")
    if ids[-1] == depth - 1:
        yield _warning(
            "target_layer_ids",
            f"{depth - 1} is the last layer, captured before the final norm; the draft must have been trained on that",
        )


def _mask_token(pair: _Pair) -> Iterator[Finding]:
    token = pair.draft.mask_token_id
    names = []
    for name in _SPECIAL_TOKENS:
        for source in (pair.target.text_config, pair.generation):
            found = source.get(name)
            if token in (found if isinstance(found, list) else [found]):
                names.append(name)
    if names:
        yield _warning(
            "mask token",
            f"{token} is also the target's {', '.join(sorted(set(names)))}; right only if the draft was trained with "
            "it, and a sign that it was never set: compare with the training recipe",
        )
    else:
        yield _ok("mask token", f"{token}, none of the target's pad, bos and eos")


def _rotary(pair: _Pair) -> Iterator[Finding]:
    draft, text = pair.draft, pair.target.text_config
    theirs = _rope(text)
    yield from _same("rotary_dim", draft.rotary_dim, text.get("rotary_dim"))
    yield from _same("rope_theta", draft.rope_theta, theirs.get("rope_theta"))
    ours = _rope(pair.keys)
    yield from _same("rope type", _rope_type(ours), _rope_type(theirs))
    factor = ours.get("partial_rotary_factor")
    if factor is not None and not is_number(factor):
        yield _problem("rotary_dim", f"partial_rotary_factor: asked for a number, found {shown(factor)}")
    elif factor is not None and round(factor * draft.head_dim) != draft.rotary_dim:
        yield _problem(
            "rotary_dim",
            f"{draft.rotary_dim}, but partial_rotary_factor {factor} of head_dim {draft.head_dim} is "
            f"{factor * draft.head_dim:g}: the trainer reads one, the server the other; write what it was trained with",
        )


def _rope(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary keys from wherever a config has them; the tables speak for the flat keys."""
    merged = {key: keys[key] for key in ("rope_theta", "partial_rotary_factor") if keys.get(key) is not None}
    for table in ("rope_scaling", "rope_parameters"):
        found = keys.get(table)
        merged |= found if isinstance(found, Mapping) else {}
    return merged


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _norms(pair: _Pair) -> Iterator[Finding]:
    yield from _same("rms_norm_eps", pair.draft.rms_norm_eps, pair.target.text_config.get("rms_norm_eps"))


def _same(name: str, ours: Any, theirs: Any) -> Iterator[Finding]:
    """A value that both layouts copy from the target, so that another one was most likely edited in."""
    if ours == theirs:
        yield _ok(name, f"{ours}, as the target's")
    else:
        yield _warning(
            name,
            f"{ours}, the target's is {theirs}; a draft copies it from its target: right only if it was trained so",
        )


def _window(pair: _Pair) -> Iterator[Finding]:
    # Sliding layers are refused by the config's parser; what is left is a window that no layer uses.
    nested = pair.keys.get("dflash_config")
    windows = {
        key: value
        for key, value in (
            ("sliding_window", pair.keys.get("sliding_window")),
            ("swa_window_size", nested.get("swa_window_size") if isinstance(nested, Mapping) else None),
        )
        if value
    }
    if windows:
        yield _warning("window", f"{windows} is set and no layer slides; served with full attention, as the layers say")
    else:
        yield _ok("window", "none, every draft layer has full attention")


def _block(pair: _Pair) -> Iterator[Finding]:
    size = pair.draft.block_size
    if size == 1:
        yield _warning("block_size", "1: one proposal a step, little to gain; is it the trained size?")
    else:
        yield _ok("block_size", f"{size} proposals a step; serve it with no other")


def _heads(pair: _Pair) -> Iterator[Finding]:
    draft = pair.draft
    shape = f"{draft.num_attention_heads} query heads, {draft.num_key_value_heads} KV heads of {draft.head_dim}"
    yield _ok("attention heads", shape)
    yield _ok("Markov head", f"{draft.markov_head_type}, rank {draft.markov_rank}")
    if draft.enable_confidence_head:
        reads = "the hidden state and the Markov embedding" if draft.confidence_head_with_markov else "the hidden state"
        yield _ok("confidence head", f"reads {reads}")
    else:
        yield _warning("confidence head", "none: blocks cannot be trimmed, so verify in the static mode")


def _quantization(pair: _Pair) -> Iterator[Finding]:
    quantization = pair.keys.get("quantization_config")
    theirs = pair.target.text_config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        yield _warning("quantisation", f"the draft is quantised ({method}); checked by name, not by value")
        return
    packed = sorted({tensor.dtype for tensor in pair.tensors.values()} - {"BF16", "F16", "F32"})
    if packed:
        yield _problem(
            "quantisation", f"tensors in {', '.join(packed)} and no quantization_config; take the whole export"
        )
        return
    note = "; the target is quantised, which is not the draft's affair" if theirs else ""
    yield _ok("quantisation", f"none{note}")


def _shared_tables(pair: _Pair) -> Iterator[Finding]:
    if pair.target.tied:
        yield _warning("LM head", "the target ties it to its embedding: a draft trained with another head fits badly")
    for name in SHARED_WITH_TARGET:
        original, copy = pair.tables.get(name), pair.tensors.get(name)
        if original is None:
            yield _problem(name, f"not in the target's files (or {INDEX_NAME}); the draft borrows it")
            continue
        if name == LM_HEAD and original.dtype not in ("BF16", "F16", "F32"):
            yield _warning(
                name,
                f"the target's is stored as {original.dtype}; the draft computes its logits through the same "
                "quantised head, which is another one than it was trained with: watch its acceptance",
            )
        elif pair.draft.layout is Layout.RELEASED or copy is None:
            yield _ok(name, "borrowed from the target")
        elif found := difference(copy, original):
            yield _problem(name, f"{found}; use the target it was trained with, or a draft with frozen tables")
        else:
            how = "equals the target's" if copy.dtype == original.dtype else f"the target's, in {copy.dtype}"
            yield _ok(name, f"{how}, by sampled rows")
