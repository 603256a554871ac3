"""Config keys of one layout written as the other, key by key.

Layout A has flat keys (NVIDIA AutoModel, nemo_automodel/components/speculative/dspark/config.py). Layout B has
`dspark_*` keys and two tables, as SGLang reads them (sglang/srt/configs/minimax_vl.py, configure_minimax_m3_dspark).
Every other key is kept. What a translation writes over is remembered under one key of its result and given back on the
way back, so that A -> B -> A is the same config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_dspark.checkpoints.config import DraftConfig, Layout, flatten, parse_draft_config
from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.keys import shown

# Says in a translated config which layout the files beside it are in.
SOURCE_LAYOUT_KEY = "dspark_source_layout"

# Values that the translation wrote over, by path; null for a key that it added.
REPLACED_KEY = "dspark_replaced_keys"

# AutoModel's, whatever the target calls itself.
MODEL_TYPE = "minimax_m3"

# Keys of these tables are named by path, "dflash_config.target_layer_ids".
_TABLES = ("dflash_config", "dspark_config")

# AutoModel's key -> the released one. Both also write what follows from them, see the two functions below.
_SAME = {
    "block_size": "dspark_block_size",
    "mask_token_id": "dspark_noise_token_id",
    "markov_rank": "dspark_markov_rank",
    "markov_head_type": "dspark_markov_head_type",
    "num_hidden_layers": "dflash_config.num_hidden_layers",
    "num_target_layers": "dflash_config.num_target_layers",
    "target_layer_ids": "dflash_config.target_layer_ids",
    "intermediate_size": "dspark_ffn_hidden_size",
}
_FFN_WIDTH_AGAIN = "dspark_config.ffn_hidden_size"
_DENSE_FFN = ("dspark_use_dense_ffn", "dspark_config.use_dense_ffn")

# What an AutoModel config says and a released one may leave out: the value then, None for the target's, and the reason.
_ADDED: dict[str, tuple[Any, str]] = {
    "enable_confidence_head": (True, "the released layout's default"),
    "confidence_head_with_markov": (True, "the released layout's default"),
    "num_anchors": (512, "AutoModel asks for it to build the model; used in training alone"),
    "target_model_type": (None, "the target's"),
}


@dataclass(frozen=True)
class KeyMove:
    """What became of one config key, by path; `source` or `destination` is empty where it is added or dropped."""

    source: str
    destination: str
    reason: str = ""


@dataclass
class Translation:
    """A config in the other layout, and what became of every key of the source."""

    config: dict[str, Any] = field(default_factory=dict)
    moves: list[KeyMove] = field(default_factory=list)


@dataclass(frozen=True)
class _Write:
    """A value for the destination, and the source's keys that say it."""

    destination: str
    value: Any
    sources: tuple[str, ...] = ()
    reason: str = ""


def to_released(automodel: Mapping[str, Any]) -> Translation:
    """The released layout's config of a draft in AutoModel's.

    Args:
        automodel: its `config.json`, already accepted by `parse_draft_config`.
    """
    source = _paths(automodel)
    writes = [_Write("architectures", [Layout.RELEASED.value], ("architectures",))]
    writes += [_Write(released, automodel[key], (key,)) for key, released in _SAME.items()]
    writes += [
        _Write(_FFN_WIDTH_AGAIN, automodel["intermediate_size"], ("intermediate_size",)),
        _Write("num_hidden_layers", automodel["num_hidden_layers"], ("num_hidden_layers",)),
        _Write("hidden_act", "swigluoai", reason="the draft's activation, whatever the copied key says"),
    ]
    writes += [_Write(key, True, reason="the draft's MLP is dense") for key in _DENSE_FFN]
    read_back = {*_SAME.values(), _FFN_WIDTH_AGAIN, *_DENSE_FFN}
    on_the_way_back = dict.fromkeys(_to_add(source))
    if source.get("model_type") != MODEL_TYPE:
        on_the_way_back["model_type"] = source.get("model_type")
    return _translate(source, writes, read_back, on_the_way_back)


def to_automodel(released: Mapping[str, Any], target_model_type: str) -> Translation:
    """AutoModel's config of a draft in the released layout.

    Args:
        released: its `config.json`, already accepted by `parse_draft_config`.
        target_model_type: the target's, for a draft that does not say it.
    """
    source = _paths(flatten(released))
    width = source.get(_FFN_WIDTH_AGAIN, source.get("dspark_ffn_hidden_size"))
    values = {key: source.get(path) for key, path in _SAME.items()}
    values |= {"intermediate_size": width, "markov_head_type": values["markov_head_type"] or "vanilla"}
    writes = [_Write("architectures", [Layout.AUTOMODEL.value], ("architectures",))]
    writes += [_Write(key, values[key], (path,)) for key, path in _SAME.items()]
    writes.append(_Write("intermediate_size", width, (_FFN_WIDTH_AGAIN,)))
    writes.append(_Write("model_type", MODEL_TYPE, ("model_type",), "AutoModel's name of a text config"))
    for key in _to_add(source):
        value, reason = _ADDED[key]
        writes.append(_Write(key, target_model_type if value is None else value, reason=reason))
    dropped = {key: "every draft of AutoModel's layout is dense" for key in _DENSE_FFN}
    if "text_config" in released:
        dropped["text_config"] = "its keys stand at the top level, before those of the same name there"
        dropped["vision_config"] = "the target's; a draft sees no images"
    return _translate(source, writes, read_back={*_SAME} - {"num_hidden_layers"}, dropped=dropped)


def _to_add(source: Mapping[str, Any]) -> list[str]:
    """The keys that AutoModel's config must say and `source` does not."""
    missing = [key for key in _ADDED if key not in source]
    if source.get("enable_confidence_head") is False:
        return [key for key in missing if key != "confidence_head_with_markov"]
    return missing


def released_config(automodel: Mapping[str, Any], where: str = "checkpoint") -> dict[str, Any]:
    """The released layout's config under which SGLang serves a draft whose files stay in AutoModel's layout.

    Raises:
        CheckpointError: the config cannot be served, or what it remembers of an earlier translation would make another
            draft of it.
    """
    config = parse_draft_config(automodel, where)
    if problem := remembered_problem(automodel):
        raise CheckpointError(where, [problem])
    translated = to_released(automodel).config
    require_the_same_draft(config, translated, where)
    return translated | {SOURCE_LAYOUT_KEY: Layout.AUTOMODEL.value}


def remembered_problem(config: Mapping[str, Any]) -> str | None:
    """What is wrong with the values that a config remembers for the way back, whoever wrote them there."""
    replaced = config.get(REPLACED_KEY)
    if replaced is not None and not isinstance(replaced, Mapping):
        return f"{REPLACED_KEY}: asked for a table, found {shown(replaced)}; remove it"
    if whole := [key for key in replaced or {} if key in (*_TABLES, REPLACED_KEY, SOURCE_LAYOUT_KEY)]:
        return f"{REPLACED_KEY}: asked for single keys, found {shown(whole)}; remove it"
    return None


def require_the_same_draft(config: DraftConfig, translated: Mapping[str, Any], where: str) -> None:
    """A translated config, read again, must be the same network.

    Raises:
        CheckpointError: it is another one, or cannot be served.
    """
    layout = Layout.RELEASED if config.layout is Layout.AUTOMODEL else Layout.AUTOMODEL
    again = parse_draft_config(translated, f"{where}, as {layout.value},")
    if dataclasses.replace(again, layout=config.layout) == config:
        return
    before, after = dataclasses.asdict(config), dataclasses.asdict(again)
    problems = [
        f"{key}: {before[key]!r} would become {after[key]!r}; check {REPLACED_KEY} in its config"
        for key in before
        if key != "layout" and before[key] != after[key]
    ]
    raise CheckpointError(where, problems)


def _translate(
    source: Mapping[str, Any],
    writes: Sequence[_Write],
    read_back: set[str],
    on_the_way_back: Mapping[str, Any] | None = None,
    dropped: Mapping[str, str] | None = None,
) -> Translation:
    """Make the writes and keep every other key.

    Args:
        source: by path.
        writes: what the destination says in its own way.
        read_back: paths of the destination that the way back takes away again; others stay there.
        on_the_way_back: what the way back would make up, by path: the value that stood there, None for none.
        dropped: paths of the source that are left out, with the reason.
    """
    dropped = {path: reason for path, reason in (dropped or {}).items() if path in source}
    given_back = dict(source.get(REPLACED_KEY) or {})
    # Also what only a write that is not made would read: its value stands elsewhere too.
    read = {path for write in writes for path in write.sources} | dropped.keys() | {REPLACED_KEY}
    writes = [write for write in writes if write.destination not in given_back]
    written = {write.destination: write for write in writes}
    result = Translation()
    replaced: dict[str, Any] = dict(on_the_way_back or {})
    paths: dict[str, Any] = {}
    for path, value in source.items():
        if path in read and path not in written:
            continue
        if path not in written:
            paths[path] = value
            result.moves.append(KeyMove(path, path))
        elif path not in written[path].sources and (path in read_back or written[path].value != value):
            replaced[path] = value
            result.moves.append(KeyMove(path, f"{REPLACED_KEY}.{path}", "another value is written there"))
    for write in writes:
        paths[write.destination] = write.value
        named = [path for path in write.sources if path in source] or [""]
        if named == [""] and source.get(write.destination) == write.value:
            named = [write.destination]
        result.moves += [KeyMove(path, write.destination, write.reason) for path in named]
        if named == [""] and write.destination not in source and write.destination not in read_back:
            replaced[write.destination] = None
    result.moves += [KeyMove(path, "", reason) for path, reason in dropped.items()]
    for path, value in given_back.items():
        paths[path] = value
        result.moves.append(KeyMove(f"{REPLACED_KEY}.{path}", path, "given back" if value is not None else "removed"))
    if replaced:
        paths[REPLACED_KEY] = replaced
        result.moves.append(KeyMove("", REPLACED_KEY, "for the way back"))
    result.config = _tables({path: value for path, value in paths.items() if given_back.get(path, 0) is not None})
    return result


def _paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the keys of its draft tables named by path."""
    paths: dict[str, Any] = {}
    for key, value in config.items():
        if key in _TABLES and isinstance(value, Mapping):
            paths |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            paths[key] = value
    return paths


def _tables(paths: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_paths`."""
    config: dict[str, Any] = {}
    for path, value in paths.items():
        table, _, key = path.rpartition(".")
        if table in _TABLES:
            config.setdefault(table, {})[key] = value
        else:
            config[path] = value
    return config
