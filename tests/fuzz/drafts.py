"""The drafts that are damaged: both layouts, in one file and in shards, small and with the demo's whole config."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.checkpoints import Layout, TargetFacts
from sglang_dspark.checkpoints.files import INDEX_NAME
from sglang_dspark.checkpoints.target import read_target
from sglang_dspark.demo import DemoSpec, build
from tests.unit.checkpoints.drafts import automodel, released
from tests.unit.checkpoints.folders import save_draft, save_target

# Keys that some reader gives a meaning: ours, SGLang's, transformers', AutoModel's.
KEYS = (
    *("architectures", "model_type", "text_config", "vision_config", "auto_map", "configuration_files", "torch_dtype"),
    *("dtype", "rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor", "rotary_dim", "head_dim"),
    *("quantization_config", "quant_method", "layer_types", "sliding_window", "use_sliding_window", "swa_window_size"),
    *("use_swa", "causal", "sample_from_anchor", "d2t", "draft_vocab_size", "vocab_size", "tie_word_embeddings"),
    *("dflash_config", "dspark_config", "dspark_block_size", "dspark_markov_rank", "dspark_markov_head_type"),
    *("dspark_noise_token_id", "dspark_ffn_hidden_size", "dspark_use_dense_ffn", "dspark_target_layer_ids"),
    *("dspark_source_layout", "dspark_replaced_keys", "block_size", "mask_token_id", "markov_rank", "markov_head_type"),
    *("target_layer_ids", "num_target_layers", "num_hidden_layers", "intermediate_size", "ffn_hidden_size"),
    *("use_dense_ffn", "hidden_act", "swiglu_alpha", "swiglu_beta", "swiglu_limit", "use_gemma_norm", "qk_norm_type"),
    *("enable_confidence_head", "confidence_head_with_markov", "rms_norm_eps", "hidden_size", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "sparse_attention_config", "moe_layer_freq", "name_or_path"),
    *("to_dict", "__class__", "_name_or_path", "transformers_version", "speculators_config", "hf_quant_config"),
)


@dataclass(frozen=True)
class Original:
    """A good draft, its target, and the layout it can be converted to."""

    name: str
    draft: Path
    target: Path
    facts: TargetFacts
    other_layout: Layout

    def files(self) -> list[Path]:
        """Everything in the draft's folder."""
        return sorted(self.draft.iterdir())

    @property
    def sharded(self) -> bool:
        """Whether an index names its files."""
        return (self.draft / INDEX_NAME).exists()


def originals(folder: Path) -> list[Original]:
    """Every draft, written below `folder`."""
    made = []
    for layout, other, raw in (
        ("automodel", Layout.RELEASED, automodel()),
        ("released", Layout.AUTOMODEL, released()),
    ):
        pair = build(folder / f"demo-{layout}", layout=layout, spec=DemoSpec.tiny())
        made.append(Original(f"demo-{layout}", pair.draft, pair.target, read_target(pair.target).facts, other))
        target = save_target(folder / f"{layout}-target")
        draft = save_draft(folder / f"{layout}-sharded", raw, files=2)
        made.append(Original(f"{layout}-sharded", draft, target, read_target(target).facts, other))
    return made


def config_of(draft: Path) -> dict[str, object]:
    """Its config.json."""
    return json.loads((draft / "config.json").read_text())
