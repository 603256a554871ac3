"""The demo draft: a random two-layer backbone under a Markov head that knows the successor table.

The Markov head names the main successor of the token before; the backbone's logits, which depend on the target's
features through the context keys and values, overrule it now and then. So a wrong context shows in the proposals.

Tensors carry the names of AutoModel's MiniMaxM3DSparkModel; `layouts` writes them under each checkpoint's own names.
"""

from __future__ import annotations

import math

import torch

from sglang_dspark.demo.draw import Draw
from sglang_dspark.demo.spec import DemoSpec
from sglang_dspark.demo.target import Tensors, attention_tensors, mlp_tensors
from sglang_dspark.demo.tokenizer import special_token_ids
from sglang_dspark.demo.transitions import wrong_weights

# What the Markov head adds for a main successor, against base logits whose spread is about 3.
MARKOV_LOGIT = 16.5


def draft_tensors(spec: DemoSpec, weights: torch.Tensor) -> Tensors:  # weights [V, V] float64
    """Every tensor that is the draft's own: no embedding and no LM head."""
    draw = Draw(spec.seed, "draft")
    hidden, features = spec.hidden_size, len(spec.target_layer_ids)
    tensors = {
        "fc.weight": draw.uniform("fc", hidden, features * hidden, std=1 / math.sqrt(features * hidden)),
        "hidden_norm.weight": draw.uniform("hidden_norm", hidden, std=0.1),
        "norm.weight": draw.uniform("norm", hidden, std=0.1),
    }
    for layer in range(spec.draft_layers):
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in _layer(spec, draw, layer).items()}
    table = wrong_weights(spec, weights) if spec.wrong_draft else weights
    tensors |= {f"markov_head.{name}": tensor for name, tensor in _markov(spec, draw, table).items()}
    if spec.enable_confidence_head:
        width = hidden + (spec.markov_rank if spec.confidence_head_with_markov else 0)
        tensors["confidence_head.proj.weight"] = draw.uniform("confidence", 1, width, std=0.5 / math.sqrt(width))
        # sigmoid(1.1) = 0.75: about the share of proposals that the target accepts.
        tensors["confidence_head.proj.bias"] = torch.full((1,), 1.1, dtype=torch.float64)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def _layer(spec: DemoSpec, draw: Draw, layer: int) -> Tensors:
    name = f"layers.{layer}"
    tensors = {
        "input_layernorm.weight": draw.uniform(f"{name}.input_norm", spec.hidden_size, std=0.1),
        "post_attention_layernorm.weight": draw.uniform(f"{name}.post_norm", spec.hidden_size, std=0.1),
    }
    attention = attention_tensors(spec, draw, name, gain=4.0, sharpness=1.5)
    parts = mlp_tensors(spec, draw, name, spec.draft_intermediate_size, gain=1.0)
    keys = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
    tensors |= {f"self_attn.{key}": tensor for key, tensor in attention.items()}
    return tensors | dict(zip(keys, parts, strict=True))


def _markov(spec: DemoSpec, draw: Draw, table: torch.Tensor) -> Tensors:
    rank = spec.markov_rank
    codes = draw.signs("markov_w2", spec.vocab_size, rank)
    successors = table @ codes
    codes[list(special_token_ids(spec))] = 0
    scale = MARKOV_LOGIT * spec.markov_scale * spec.logit_scale / rank
    tensors = {"markov_w1.weight": successors, "markov_w2.weight": codes * scale}
    if spec.markov_head_type == "gated":
        width = spec.hidden_size + rank
        tensors["gate_proj.weight"] = draw.uniform("gate_proj", rank, width, std=1 / math.sqrt(width))
        # Gates around sigmoid(2) = 0.88: mostly open, moved by the hidden state.
        tensors["gate_proj.bias"] = torch.full((rank,), 2.0, dtype=torch.float64)
    if spec.markov_head_type == "rnn":
        tensors |= _rnn(spec, draw)
    return tensors


def _rnn(spec: DemoSpec, draw: Draw) -> Tensors:
    """joint_proj maps [state; code; hidden] to [gate; candidate; output], and the bias comes from tanh(output)."""
    rank, width = spec.markov_rank, 2 * spec.markov_rank + spec.hidden_size
    joint = draw.uniform("joint_proj", 3 * rank, width, std=0.5 / math.sqrt(width))
    # The output passes the previous token's code through: tanh(1.5 c) is 0.9 c for codes of +1 and -1.
    joint[2 * rank :, rank : 2 * rank] += 1.5 * torch.eye(rank, dtype=torch.float64)
    return {
        "joint_proj.weight": joint,
        "joint_proj.bias": draw.uniform("joint_bias", 3 * rank, std=0.2),
    }
