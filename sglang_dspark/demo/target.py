"""The demo target: a small MiniMax-M3 text model whose greedy output mostly follows the successor table.

Every token v has a random code, which is its LM head row. A token's embedding is half its own identity and half the
codes of its successors. The last token's embedding is still in the residual stream at the end, so the head finds there
whom that token names. The layers are random, but they write several times the embedding's energy on the same stream:
the context decides a good share of the tokens.

Channel 0 of the residual stream is the same positive constant for every token, and no layer writes on it. The LM head
reads it as a bias, which keeps the special tokens (the mask among them) and unused bytes out of every output.

Tensor names and config keys are those that SGLang's srt/models/minimax_m3.py loads.
"""

from __future__ import annotations

import math

import torch

from sglang_dspark.demo.draw import Draw
from sglang_dspark.demo.spec import DemoSpec
from sglang_dspark.demo.tokenizer import BEGIN, END, PAD, special_token_ids

BIAS_CHANNEL = 0
BIAS_VALUE = 2.0
# Logits at T = 1, measured on the text pair: a main successor stands around 10, a suppressed token below -20.
SUCCESSOR_LOGIT = 10.0
UNUSED_LOGIT = -20.0
SPECIAL_LOGIT = -60.0
# The residual stream's root mean square at the final norm, about: the embedding's 1 plus what eight sublayers add.
FINAL_RMS = 2.15

Tensors = dict[str, torch.Tensor]


def target_config(spec: DemoSpec) -> dict[str, object]:
    """The target's config.json."""
    ends: dict[str, object] = {}
    if spec.name != "tiny":
        ends = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
    return {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "model_type": "minimax_m3",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "rotary_dim": spec.rotary_dim,
        "rope_theta": spec.rope_theta,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_beta": 1.0,
        "swiglu_limit": 7.0,
        "intermediate_size": spec.intermediate_size,
        "dense_intermediate_size": spec.dense_intermediate_size,
        "shared_intermediate_size": spec.intermediate_size,
        "moe_layer_freq": list(spec.moe_layers),
        "num_local_experts": spec.num_local_experts,
        "num_experts_per_tok": spec.num_experts_per_tok,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": 2.0,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_attention_freq": list(spec.sparse_layers),
            # The index branch of M3 only selects blocks: its value path is disabled on every sparse layer.
            "sparse_disable_index_value": list(spec.sparse_layers),
            "sparse_num_index_heads": spec.num_key_value_heads,
            "sparse_index_dim": spec.head_dim,
            "sparse_block_size": spec.sparse_block_size,
            "sparse_topk_blocks": spec.sparse_topk_blocks,
            "sparse_init_block": spec.sparse_init_blocks,
            "sparse_local_block": spec.sparse_local_blocks,
            "sparse_score_type": "max",
        },
        "tie_word_embeddings": spec.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        **ends,
    }


def target_tensors(spec: DemoSpec, weights: torch.Tensor) -> Tensors:  # weights [V, V] float64
    """Every tensor of the target, in bf16 except the routing bias, which M3 keeps in fp32."""
    draw = Draw(spec.seed, "target")
    codes = draw.uniform("codes", spec.vocab_size, spec.hidden_size, std=1.0)
    identities = draw.uniform("identities", spec.vocab_size, spec.hidden_size, std=1.0)
    embeddings = (identities + weights @ codes) / math.sqrt(2)
    embeddings[:, BIAS_CHANNEL] = BIAS_VALUE
    tensors = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": torch.zeros(spec.hidden_size, dtype=torch.float64),
        "lm_head.weight": _lm_head(spec, codes, weights),
    }
    if spec.tie_word_embeddings:
        del tensors["lm_head.weight"]
    for layer in range(spec.num_hidden_layers):
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in _layer(spec, draw, layer).items()}
    keep = torch.float32
    return {n: t.to(keep if n.endswith("e_score_correction_bias") else torch.bfloat16) for n, t in tensors.items()}


def attention_tensors(spec: DemoSpec, draw: Draw, name: str, gain: float, sharpness: float) -> Tensors:
    """The projections and per-head norms of one attention layer; the draft's layers have the same."""
    hidden, queries = spec.hidden_size, spec.num_attention_heads * spec.head_dim
    keys = spec.num_key_value_heads * spec.head_dim
    into = 1 / math.sqrt(hidden)
    return {
        "q_proj.weight": draw.uniform(f"{name}.q_proj", queries, hidden, std=into),
        "k_proj.weight": draw.uniform(f"{name}.k_proj", keys, hidden, std=into),
        "v_proj.weight": draw.uniform(f"{name}.v_proj", keys, hidden, std=into),
        "o_proj.weight": writes(draw.uniform(f"{name}.o_proj", hidden, queries, std=gain / math.sqrt(queries))),
        # Both norms multiply by 1 + sharpness: 0.6 makes attention look at some tokens and not at others, 1.5 at a few.
        "q_norm.weight": sharpness + draw.uniform(f"{name}.q_norm", spec.head_dim, std=0.2),
        "k_norm.weight": sharpness + draw.uniform(f"{name}.k_norm", spec.head_dim, std=0.2),
    }


def mlp_tensors(spec: DemoSpec, draw: Draw, name: str, width: int, gain: float) -> tuple[torch.Tensor, ...]:
    """Gate, up and down of one gated MLP."""
    into = 1 / math.sqrt(spec.hidden_size)
    return (
        draw.uniform(f"{name}.gate", width, spec.hidden_size, std=into),
        draw.uniform(f"{name}.up", width, spec.hidden_size, std=into),
        writes(draw.uniform(f"{name}.down", spec.hidden_size, width, std=gain / math.sqrt(width))),
    )


def writes(projection: torch.Tensor) -> torch.Tensor:  # [hidden, ...]
    """The same projection onto the residual stream, without the bias channel."""
    projection[BIAS_CHANNEL] = 0
    return projection


def _layer(spec: DemoSpec, draw: Draw, layer: int) -> Tensors:
    name, gain = f"layers.{layer}", spec.target_layer_gain
    tensors = {
        "input_layernorm.weight": draw.uniform(f"{name}.input_norm", spec.hidden_size, std=0.1),
        "post_attention_layernorm.weight": draw.uniform(f"{name}.post_norm", spec.hidden_size, std=0.1),
    }
    attention = attention_tensors(spec, draw, name, gain=1.6 * gain, sharpness=0.6)
    if spec.sparse_layers[layer]:
        attention |= _index_tensors(spec, draw, name)
    tensors |= {f"self_attn.{key}": tensor for key, tensor in attention.items()}
    if not spec.moe_layers[layer]:
        parts = mlp_tensors(spec, draw, name, spec.dense_intermediate_size, gain)
        keys = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
        return tensors | dict(zip(keys, parts, strict=True))
    return tensors | {f"block_sparse_moe.{key}": tensor for key, tensor in _moe(spec, draw, name, gain).items()}


def _index_tensors(spec: DemoSpec, draw: Draw, name: str) -> Tensors:
    heads, into = spec.num_key_value_heads, 1 / math.sqrt(spec.hidden_size)
    return {
        "index_q_proj.weight": draw.uniform(f"{name}.index_q", heads * spec.head_dim, spec.hidden_size, std=into),
        "index_k_proj.weight": draw.uniform(f"{name}.index_k", spec.head_dim, spec.hidden_size, std=into),
        "index_q_norm.weight": draw.uniform(f"{name}.index_q_norm", spec.head_dim, std=0.2),
        "index_k_norm.weight": draw.uniform(f"{name}.index_k_norm", spec.head_dim, std=0.2),
    }


def _moe(spec: DemoSpec, draw: Draw, name: str, gain: float) -> Tensors:
    into = 1 / math.sqrt(spec.hidden_size)
    tensors = {
        "gate.weight": draw.uniform(f"{name}.router", spec.num_local_experts, spec.hidden_size, std=2 * into),
        "e_score_correction_bias": draw.uniform(f"{name}.router_bias", spec.num_local_experts, std=0.1),
    }
    for expert in range(spec.num_local_experts):
        parts = mlp_tensors(spec, draw, f"{name}.expert{expert}", spec.intermediate_size, 0.7 * gain)
        tensors |= {f"experts.{expert}.{key}.weight": part for key, part in zip(("w1", "w3", "w2"), parts, strict=True)}
    parts = mlp_tensors(spec, draw, f"{name}.shared", spec.intermediate_size, 0.7 * gain)
    keys = ("gate_proj", "up_proj", "down_proj")
    return tensors | {f"shared_experts.{key}.weight": part for key, part in zip(keys, parts, strict=True)}


def _lm_head(spec: DemoSpec, codes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    # The final norm divides by FINAL_RMS: a code in the stream then meets itself as hidden_size / FINAL_RMS.
    head = codes * (spec.logit_scale * SUCCESSOR_LOGIT * math.sqrt(2) * FINAL_RMS / spec.hidden_size)
    special = list(special_token_ids(spec))
    bias = torch.where(weights.sum(0) > 0, 0.0, UNUSED_LOGIT)
    bias[special] = SPECIAL_LOGIT
    head[special] = 0
    head[:, BIAS_CHANNEL] = bias * (FINAL_RMS / BIAS_VALUE)
    return head
