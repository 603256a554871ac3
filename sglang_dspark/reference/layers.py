"""The draft's decoder layer: attention over [context | block], then a dense SwiGLU-OAI MLP, both behind a Gemma norm.

The context's keys and values come straight from the projected target features: no input norm, and no query is ever
asked from them. So `MiniMaxM3DSparkAttention` splits into the two halves that training does at once and generation
does apart: `keys_values` of some tokens, and `attend` from the rows of a block. M3's sparse attention and experts are
the target's; the draft is dense whatever keys its config copies.

Semantics: nemo_automodel.components.speculative.dspark.draft_minimax_m3 (NVIDIA AutoModel 0.7.0), written anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sglang_dspark.reference.attention_mask import AttentionMask, masked_attention
from sglang_dspark.reference.config import ReferenceConfig
from sglang_dspark.reference.precision import at_least_float32
from sglang_dspark.reference.rotary import rotate

KeysValues = tuple[torch.Tensor, torch.Tensor]  # each [B, S, KV heads, D]


class GemmaRMSNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * (1 + w) over the last dimension, in float32 with one rounding at the end."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., width]
        """The normed tensor, in x's dtype."""
        exact = at_least_float32(x)
        scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return (exact * scale * (1 + at_least_float32(self.weight))).to(x.dtype)


class MiniMaxM3DSparkMLP(nn.Module):
    """down(g * sigmoid(alpha * g) * (u + 1)) with g = min(gate, limit) and u = clamp(up, -limit, limit)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        config = ReferenceConfig.of(config)
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        hidden, width = config.draft.hidden_size, config.draft.mlp_width
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., hidden]
        """The MLP's output, without the residual."""
        gate = at_least_float32(self.gate_proj(x)).clamp(max=self.limit)
        up = at_least_float32(self.up_proj(x)).clamp(-self.limit, self.limit)
        return self.down_proj((gate * torch.sigmoid(self.alpha * gate) * (up + 1)).to(x.dtype))


class MiniMaxM3DSparkAttention(nn.Module):
    """Grouped-query attention whose queries are the block's rows and whose keys are the context's and the block's."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        draft = ReferenceConfig.of(config).draft
        self.layer_idx, self.head_dim = layer_idx, draft.head_dim
        self.scaling = draft.head_dim**-0.5
        query_width = draft.num_attention_heads * draft.head_dim
        key_width = draft.num_key_value_heads * draft.head_dim
        self.q_proj = nn.Linear(draft.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(draft.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(draft.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, draft.hidden_size, bias=False)
        self.q_norm = GemmaRMSNorm(draft.head_dim, draft.rms_norm_eps)
        self.k_norm = GemmaRMSNorm(draft.head_dim, draft.rms_norm_eps)

    def keys_values(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> KeysValues:  # x [B, S, hidden]
        """Keys, normed per head and rotated to their positions, and values."""
        keys = self.k_norm(self._heads(self.k_proj(x)))
        return rotate(keys, cos, sin), self._heads(self.v_proj(x))

    def attend(
        self,
        block: torch.Tensor,  # [B, Q, hidden]
        context: KeysValues,  # of the S context tokens
        cos: torch.Tensor,  # [B, Q, R / 2] fp32, the block's
        sin: torch.Tensor,
        mask: AttentionMask = None,  # over S + Q keys; None: every row sees every key
    ) -> torch.Tensor:
        """The block's attention output, without the residual."""
        queries = rotate(self.q_norm(self._heads(self.q_proj(block))), cos, sin)
        own_keys, own_values = self.keys_values(block, cos, sin)
        keys = torch.cat([context[0], own_keys], dim=1)
        values = torch.cat([context[1], own_values], dim=1)
        by_head = (tensor.transpose(1, 2) for tensor in (queries, keys, values))
        return self.o_proj(masked_attention(*by_head, mask=mask, scale=self.scaling).transpose(1, 2).flatten(2))

    def forward(
        self,
        hidden_states: torch.Tensor,  # [B, Q, hidden]
        target_hidden_states: torch.Tensor,  # [B, S, hidden]
        cos: torch.Tensor,  # [B, S + Q, R / 2] fp32, the context's and then the block's
        sin: torch.Tensor,
        attention_mask: AttentionMask = None,
    ) -> torch.Tensor:
        """Both halves at once, as training does."""
        length = target_hidden_states.shape[1]
        context = self.keys_values(target_hidden_states, cos[:, :length], sin[:, :length])
        return self.attend(hidden_states, context, cos[:, length:], sin[:, length:], attention_mask)

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:  # [B, T, heads * D] -> [B, T, heads, D]
        return projected.unflatten(-1, (-1, self.head_dim))


class MiniMaxM3DSparkDecoderLayer(nn.Module):
    """Pre-norm residual layer. The norms are for the block alone: the context arrives normed by the model."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        config = ReferenceConfig.of(config)
        hidden, eps = config.draft.hidden_size, config.draft.rms_norm_eps
        self.self_attn = MiniMaxM3DSparkAttention(config, layer_idx)
        self.mlp = MiniMaxM3DSparkMLP(config)
        self.input_layernorm = GemmaRMSNorm(hidden, eps)
        self.post_attention_layernorm = GemmaRMSNorm(hidden, eps)

    def step(
        self,
        block: torch.Tensor,  # [B, Q, hidden]
        context: KeysValues,
        cos: torch.Tensor,  # the block's
        sin: torch.Tensor,
        mask: AttentionMask = None,
    ) -> torch.Tensor:
        """The block after this layer, given the layer's keys and values of the context."""
        block = block + self.self_attn.attend(self.input_layernorm(block), context, cos, sin, mask)
        return block + self.mlp(self.post_attention_layernorm(block))

    def forward(
        self,
        target_hidden_states: torch.Tensor,  # [B, S, hidden]
        hidden_states: torch.Tensor,  # [B, Q, hidden]
        attention_mask: AttentionMask,
        cos: torch.Tensor,  # [B, S + Q, R / 2] fp32
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """The block after this layer, given the context's features."""
        length = target_hidden_states.shape[1]
        context = self.self_attn.keys_values(target_hidden_states, cos[:, :length], sin[:, :length])
        return self.step(hidden_states, context, cos[:, length:], sin[:, length:], attention_mask)
