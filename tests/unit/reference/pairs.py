"""Demo pairs, and the independent oracle's target behind the protocol that `generate` asks of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch

from sglang_dspark.demo import DemoPair, DemoSpec, build, prompts
from sglang_dspark.reference import TargetStep
from tests.oracle.target import Cache, Target


class OracleTarget:
    """tests/oracle's Target as `sglang_dspark.reference.Target`."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def start(self, layer_ids: Sequence[int]) -> OracleSession:
        return OracleSession(self.target, list(layer_ids))


class OracleSession:
    def __init__(self, target: Target, layer_ids: list[int]) -> None:
        self.target, self.layer_ids, self.cache = target, layer_ids, Cache()

    def extend(self, token_ids: torch.Tensor) -> TargetStep:
        output = self.target.forward(token_ids.tolist(), self.cache)
        return TargetStep(output.logits, torch.cat([output.layer_outputs[i] for i in self.layer_ids], dim=-1))

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)


def encoded_prompts(pair: DemoPair, count: int) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in prompts(count)]


def config_table(folder: Path, **changes: Any) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text()) | changes


def small_spec(**changes: Any) -> DemoSpec:
    """Small enough for float64 and for many forward passes; sizes that differ wherever a wrong one could go unseen."""
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rotary_dim": 8,
        "markov_rank": 12,
        "block_size": 4,
    }
    return DemoSpec.tiny(11, **{**sizes, **changes})


def small_table(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """The config of such a draft."""
    num_anchors = changes.pop("num_anchors", 5)
    return config_table(build(tmp_path, spec=small_spec(**changes)).draft, num_anchors=num_anchors)
