"""Writes the draft under the names and config keys of the two checkpoint layouts in use.

`automodel`: what NVIDIA AutoModel's trainer saves (MiniMaxM3DSparkModel), flat names, with copies of the target's
embedding and LM head. `released`: MiniMaxAI's own draft (DSparkMiniMaxDraftModel), everything below one prefix.
"""

from __future__ import annotations

from sglang_dspark.demo.spec import DemoSpec
from sglang_dspark.demo.target import Tensors
from sglang_dspark.demo.tokenizer import mask_token_id

LAYOUTS = ("automodel", "released")
RELEASED_PREFIX = "language_model.model.dspark."

Config = dict[str, object]


def draft_checkpoint(
    layout: str, spec: DemoSpec, target_config: Config, target: Tensors, draft: Tensors
) -> tuple[Config, Tensors]:
    """The draft's config.json and tensors in the asked layout."""
    if layout == "automodel":
        return _automodel_config(spec, target_config), _automodel_tensors(target, draft)
    if layout == "released":
        return _released_config(spec, target_config), _released_tensors(draft)
    raise ValueError(f"asked for the draft layout {layout!r}: take one of {', '.join(LAYOUTS)}")


def _automodel_config(spec: DemoSpec, target_config: Config) -> Config:
    return target_config | {
        "architectures": ["MiniMaxM3DSparkModel"],
        "num_hidden_layers": spec.draft_layers,
        "num_target_layers": spec.num_hidden_layers,
        "target_model_type": target_config["model_type"],
        # The trainer's draft MLP reads this key; dense_intermediate_size stays the target's.
        "intermediate_size": spec.draft_intermediate_size,
        "block_size": spec.block_size,
        "mask_token_id": mask_token_id(spec),
        "target_layer_ids": list(spec.target_layer_ids),
        "num_anchors": 512,
        "enable_confidence_head": spec.enable_confidence_head,
        "confidence_head_with_markov": spec.confidence_head_with_markov,
        "markov_rank": spec.markov_rank,
        "markov_head_type": spec.markov_head_type,
    }


def _automodel_tensors(target: Tensors, draft: Tensors) -> Tensors:
    shared = {
        "embed_tokens.weight": target["model.embed_tokens.weight"],
        "lm_head.weight": target.get("lm_head.weight", target["model.embed_tokens.weight"]),
    }
    return shared | draft


def _released_config(spec: DemoSpec, target_config: Config) -> Config:
    return target_config | {
        "architectures": ["DSparkMiniMaxDraftModel"],
        "dspark_block_size": spec.block_size,
        "dspark_markov_rank": spec.markov_rank,
        "dspark_markov_head_type": spec.markov_head_type,
        "dspark_noise_token_id": mask_token_id(spec),
        "dspark_ffn_hidden_size": spec.draft_intermediate_size,
        "dspark_use_dense_ffn": True,
        "dspark_config": {"use_dense_ffn": True, "ffn_hidden_size": spec.draft_intermediate_size},
        "dflash_config": {
            "num_target_layers": spec.num_hidden_layers,
            "num_hidden_layers": spec.draft_layers,
            "target_layer_ids": list(spec.target_layer_ids),
            "causal": False,
        },
        "enable_confidence_head": spec.enable_confidence_head,
        "confidence_head_with_markov": spec.confidence_head_with_markov,
    }


def _released_tensors(draft: Tensors) -> Tensors:
    return {RELEASED_PREFIX + _released_name(name): tensor for name, tensor in draft.items()}


def _released_name(name: str) -> str:
    if name.startswith("layers."):
        _, index, rest = name.split(".", 2)
        return f"layers.{index}.decoder_layer.{rest}"
    return "final_norm.weight" if name == "norm.weight" else name
