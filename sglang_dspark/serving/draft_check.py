"""Checks a draft before the server starts, where SGLang resolves its DSPARK arguments.

SGLang reads the draft's config there too, but goes on with defaults when that fails: a wrong path or block size would
show only as an accepted length near 1. Only MiniMax-M3 targets are checked; other models' drafts are not ours.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sglang.srt.configs.minimax_vl import configure_minimax_m3_dspark
from sglang.srt.utils.hf_transformers.common import get_rope_config
from sglang.srt.utils.hf_transformers.config import HfModelConfigParser
from transformers import PretrainedConfig

from sglang_dspark.checkpoints import (
    CheckpointError,
    DraftConfig,
    Layout,
    TargetFacts,
    parse_draft_config,
    read_config,
    read_tensor_shapes,
)
from sglang_dspark.checkpoints.target import TARGET_ARCHITECTURES
from sglang_dspark.checkpoints.tensors import account
from sglang_dspark.checkpoints.translate import SOURCE_LAYOUT_KEY, released_config
from sglang_dspark.serving import hf_config


def is_ours(target_config: PretrainedConfig) -> bool:
    """Whether the target is a MiniMax-M3, whose drafts this plugin serves."""
    return (target_config.architectures or [None])[0] in TARGET_ARCHITECTURES


def target_facts(target_config: PretrainedConfig) -> TargetFacts:
    """The numbers a draft must agree with, from a target's config (text-only or vision-language)."""
    text = getattr(target_config, "text_config", None) or target_config
    return TargetFacts(
        num_layers=int(text.num_hidden_layers),
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
    )


def check_draft(path: str, revision: str | None, target: TargetFacts, tp_size: int) -> DraftConfig:
    """Read a draft's config and, where its files are local, its tensor names and shapes.

    Args:
        path: a folder, or the name of a repository on the hub.
        revision: of the repository.
        target: what it drafts for.
        tp_size: ranks of its tensor parallelism.

    Raises:
        CheckpointError: with every problem found, at once.
    """
    folder = Path(path)
    raw = config_at(path, revision)
    config = parse_draft_config(raw, path)
    if config.layout is Layout.AUTOMODEL:
        released_config(raw, path)  # what SGLang will read must be the same draft
    if SOURCE_LAYOUT_KEY in raw:
        problem = f"{SOURCE_LAYOUT_KEY}: the plugin's own note beside a translated config, found in a file; remove it"
        raise CheckpointError(path, [problem])
    _require_sglang_reads_the_same(path, revision, config)
    problems = config.problems_with_target(target) + config.problems_with_tensor_parallel(tp_size)
    if folder.is_dir():
        problems += account(config, read_tensor_shapes(folder))
    if problems:
        raise CheckpointError(path, problems)
    return config


def config_at(path: str, revision: str | None) -> dict[str, Any]:
    """The `config.json` of a folder, or of a repository on the hub.

    Raises:
        CheckpointError: there is none to be had.
    """
    folder = Path(path)
    return read_config(folder) if folder.is_dir() else _hub_config(path, revision)


def _require_sglang_reads_the_same(path: str, revision: str | None, config: DraftConfig) -> None:
    """Read the config as SGLang will, and hold the result to what was checked.

    transformers gives some keys a meaning of its own and SGLang reads others first, so that a checked file may become
    another draft, or a traceback in a child process.

    Raises:
        CheckpointError: they cannot read it, or read another draft.
    """
    hf_config.register()
    try:
        read = configure_minimax_m3_dspark(
            HfModelConfigParser().parse(path, trust_remote_code=False, revision=revision)
        )
        rope_theta, _ = get_rope_config(read)
        theirs = parse_draft_config(read.to_dict(), path)
    except CheckpointError:
        raise
    except Exception as error:
        problem = f"config.json cannot be read by SGLang ({_first_line(error)}); remove what does not belong to a draft"
        raise CheckpointError(path, [problem]) from error
    ours, theirs = dataclasses.asdict(config), dataclasses.asdict(theirs) | {"rope_theta": rope_theta}
    problems = [
        f"{key}: {ours[key]!r} in config.json, and {theirs[key]!r} where SGLang reads it; say it once"
        for key in ours
        if key != "layout" and ours[key] != theirs[key]
    ]
    if problems:
        raise CheckpointError(path, problems)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def safetensors_only(load_format: str) -> str:
    """The load format a draft gets where `load_format` was asked for: none that goes on to pickles.

    "auto" takes *.bin and *.pt where it finds no safetensors, which a repository on the hub may have arranged.

    Raises:
        ValueError: pickles were asked for by name.
    """
    if load_format in ("pt", "npcache"):
        raise ValueError(
            f"load format {load_format!r}: a MiniMax-M3 draft is loaded from safetensors alone, never from pickles; "
            "pass --speculative-draft-load-format safetensors"
        )
    return "safetensors" if load_format == "auto" else load_format


def _hub_config(path: str, revision: str | None) -> dict[str, Any]:
    try:
        raw, _ = PretrainedConfig.get_config_dict(path, revision=revision)
    except Exception as error:
        raise CheckpointError(
            path,
            [
                "asked for a draft checkpoint; there is no such folder here, and the hub gave no config of that name "
                f"({_first_line(error)}); check the path"
            ],
        ) from error
    if not raw:
        raise CheckpointError(path, ["asked for a draft checkpoint, found no config.json there; check the path"])
    return raw
