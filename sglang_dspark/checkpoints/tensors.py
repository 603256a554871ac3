"""Tensor names of both layouts, mapped onto one set of names, and the shapes they must have.

The canonical names are layout A's. Layout B keeps the same tensors under `language_model.model.dspark.` (also seen:
`model.dspark.`, `dspark.`), with `final_norm` for `norm`, a `decoder_layer.` step inside each layer, and sometimes
`block_sparse_moe` for the same dense MLP. It carries no embedding and no LM head: both are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_dspark.checkpoints.config import DraftConfig, Layout

Shape = tuple[int, ...]

RELEASED_PREFIXES = ("language_model.model.dspark.", "model.dspark.", "dspark.")

# Frozen copies of the target's tables. The server uses the target's own.
SHARED_WITH_TARGET = ("embed_tokens.weight", "lm_head.weight")

# Written beside a quantised weight; their shapes depend on the format, so only their place is checked.
_QUANTIZATION_SUFFIXES = ("weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale", "weight_zero_point")


def canonical_name(raw_name: str, layout: Layout) -> str | None:
    """The canonical name of a checkpoint tensor, or None where the layout has no place for such a name.

    `rotary_emb.*` buffers, which older exports wrote, are derived from the config and belong nowhere either.
    """
    if layout is Layout.AUTOMODEL:
        return raw_name
    for prefix in RELEASED_PREFIXES:
        if raw_name.startswith(prefix):
            name = raw_name[len(prefix) :].replace(".decoder_layer.", ".").replace(".block_sparse_moe.", ".mlp.")
            return "norm.weight" if name == "final_norm.weight" else name
    return None


def released_name(name: str) -> str:
    """The released layout's name of a canonical tensor (the inverse of `canonical_name`)."""
    if name == "norm.weight":
        name = "final_norm.weight"
    if name.startswith("layers."):
        _, index, rest = name.split(".", 2)
        name = f"layers.{index}.decoder_layer.{rest}"
    return RELEASED_PREFIXES[0] + name


def expected_shapes(config: DraftConfig) -> dict[str, Shape]:
    """Every tensor the draft needs, by canonical name, without the tables it shares with the target."""
    hidden, rank, vocab = config.hidden_size, config.markov_rank, config.vocab_size
    q_width = config.num_attention_heads * config.head_dim
    kv_width = config.num_key_value_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, hidden * len(config.target_layer_ids)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "self_attn.q_proj.weight": (q_width, hidden),
            layer + "self_attn.k_proj.weight": (kv_width, hidden),
            layer + "self_attn.v_proj.weight": (kv_width, hidden),
            layer + "self_attn.o_proj.weight": (hidden, q_width),
            layer + "self_attn.q_norm.weight": (config.head_dim,),
            layer + "self_attn.k_norm.weight": (config.head_dim,),
            layer + "mlp.gate_proj.weight": (config.mlp_width, hidden),
            layer + "mlp.up_proj.weight": (config.mlp_width, hidden),
            layer + "mlp.down_proj.weight": (hidden, config.mlp_width),
        }
    shapes |= {"markov_head.markov_w1.weight": (vocab, rank), "markov_head.markov_w2.weight": (vocab, rank)}
    if config.markov_head_type == "gated":
        shapes |= {
            "markov_head.gate_proj.weight": (rank, hidden + rank),
            "markov_head.gate_proj.bias": (rank,),
        }
    if config.markov_head_type == "rnn":
        shapes |= {
            "markov_head.joint_proj.weight": (3 * rank, 2 * rank + hidden),
            "markov_head.joint_proj.bias": (3 * rank,),
        }
    if config.enable_confidence_head:
        width = hidden + (rank if config.confidence_head_with_markov else 0)
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


@dataclass
class Accounting:
    """Sees every tensor of a checkpoint once and says at the end what is missing, unexpected or misshapen."""

    config: DraftConfig
    seen: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Work out the tensors this config asks for."""
        self.expected = expected_shapes(self.config)

    def add(self, raw_name: str, shape: Shape) -> str | None:
        """Enter one tensor; its canonical name where the draft loads it, None where it is shared or a problem."""
        name = canonical_name(raw_name, self.config.layout)
        if name in SHARED_WITH_TARGET and self.config.layout is Layout.AUTOMODEL:
            table = (self.config.vocab_size, self.config.hidden_size)
            if shape != table:
                self.problems.append(f"tensor {raw_name}: asked for shape {list(table)}, found {list(shape)}")
            return None
        if name is not None and self.config.quantized and self._beside_weight(name):
            return name
        if name is None or name not in self.expected:
            self.problems.append(f"tensor {raw_name}: unexpected; no part of this draft has that name")
            return None
        if name in self.seen:
            self.problems.append(f"tensor {raw_name}: found twice")
            return None
        self.seen.add(name)
        # A packed weight of a quantised projection has its format's shape.
        packed = self.config.quantized and "_proj." in name or name == "fc.weight" and self.config.quantized
        if not packed and shape != self.expected[name]:
            self.problems.append(f"tensor {raw_name}: asked for shape {list(self.expected[name])}, found {list(shape)}")
            return None
        return name

    def _beside_weight(self, name: str) -> bool:
        base, _, suffix = name.rpartition(".")
        return suffix in _QUANTIZATION_SUFFIXES and f"{base}.weight" in self.expected

    def finish(self) -> list[str]:
        """Every problem, missing tensors included; empty when the checkpoint is complete."""
        missing = sorted(self.expected.keys() - self.seen)
        spelled = released_name if self.config.layout is Layout.RELEASED else str
        return self.problems + [f"tensor {spelled(name)}: missing" for name in missing]


def account(config: DraftConfig, shapes: Mapping[str, Shape]) -> list[str]:
    """Compare a whole checkpoint, given as raw tensor name -> shape, with what `config` asks for."""
    accounting = Accounting(config)
    for raw_name, shape in shapes.items():
        accounting.add(raw_name, shape)
    return accounting.finish()
