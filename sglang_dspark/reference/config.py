"""What the reference draft needs to know of a draft's `config.json`: the served facts, and what only training reads.

`checkpoints.DraftConfig` holds what every reader of a draft must agree on. Training adds the number of anchors, and a
network that computes its own activation needs the activation's constants. The table itself is kept, because a draft
that is saved again must carry every key it came with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_dspark.checkpoints import CheckpointError, DraftConfig, Layout, parse_draft_config

# Anchors a sequence when the config names none. The released layout never does: it was written for serving.
DEFAULT_NUM_ANCHORS = 512


@dataclass(frozen=True)
class ReferenceConfig:
    """A draft's config as the reference model reads it; `table` is the `config.json` it was read from."""

    draft: DraftConfig
    num_anchors: int
    swiglu_alpha: float
    swiglu_limit: float
    table: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, config: Any) -> ReferenceConfig:
        """Read a `config.json` table, a transformers config, or any object with the same names as attributes.

        Raises:
            CheckpointError: with every key that is missing or cannot be used, at once.
        """
        if isinstance(config, cls):
            return config
        return read_reference_config(_as_table(config), "config")


def read_reference_config(table: Mapping[str, Any], where: str) -> ReferenceConfig:
    """Read a `config.json` of either layout.

    Args:
        table: the JSON object.
        where: its path, for messages.

    Raises:
        CheckpointError: with every problem at once.
    """
    draft = parse_draft_config(table, where)
    text = {**table, **(table.get("text_config") or {})}
    anchors = text.get("num_anchors", DEFAULT_NUM_ANCHORS if draft.layout is Layout.RELEASED else None)
    if type(anchors) is not int or anchors < 1:
        problem = f"num_anchors: asked for at least 1 training block a sequence, found {anchors!r}; write a number"
        raise CheckpointError(where, [problem])
    return ReferenceConfig(draft, anchors, float(text["swiglu_alpha"]), float(text["swiglu_limit"]), table)


def _as_table(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if hasattr(config, "to_json_string"):
        return json.loads(config.to_json_string())  # what transformers would save: without its generic defaults
    if hasattr(config, "__dict__"):
        return dict(vars(config))
    raise TypeError(
        f"asked for a draft's config.json table or a config object, found {type(config).__name__}; "
        "pass json.load of the draft's config.json"
    )
