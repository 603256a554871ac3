"""MiniMax-M3's text model as a torch module that trains: the demo target, and the features a draft learns from.

Written from the architecture (Gemma norms, per-head QK norm, partial RoPE, GQA, SwiGLU-OAI, sigmoid-routed experts with
a shared one, full and block-sparse attention). Parameters carry the names that SGLang's models/minimax_m3.py loads, but
for the experts of a layer, which lie in three tall matrices here and are cut apart on the way to the checkpoint.

Every expert runs for every token and the unchosen ones weigh nothing: exact, and on a small model
faster than gathering. The index branch chooses key blocks by top-k, which passes no gradient: it keeps its first
values, see `_tie_index`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

# B sequences, T new tokens, S tokens in all, V vocabulary, H hidden, D head_dim, E experts, W expert width.


class KeyValueCache:
    """Keys, values and index keys of every layer for the tokens so far; every sequence of the batch is equally long."""

    def __init__(self) -> None:
        self.length = 0
        self._rows: dict[str, torch.Tensor] = {}  # [B, heads, room, D]

    def append(self, name: str, rows: torch.Tensor) -> torch.Tensor:  # [B, heads, T, D] -> [B, heads, S, D]
        """Add the new tokens' rows, behind the `length` tokens that are done, and return all of them."""
        end = self.length + rows.shape[2]
        room = self._rows.get(name)
        if room is None or room.shape[2] < end:
            # Twice what is needed: copying everything for every token would cost more than the model.
            larger = rows.new_empty(rows.shape[0], rows.shape[1], 2 * end, rows.shape[3])
            if room is not None:
                larger[:, :, : self.length] = room[:, :, : self.length]
            self._rows[name] = room = larger
        room[:, :, self.length : end] = rows
        return room[:, :, :end]


@dataclass(frozen=True)
class TargetOutput:
    """What a draft is trained on."""

    layer_outputs: list[torch.Tensor]  # a layer each: [B, T, H], the residual stream after it, before any norm
    last_hidden: torch.Tensor  # [B, T, H], after the final norm: the LM head's input


class GemmaNorm(nn.Module):
    """Root mean square norm that multiplies by 1 + weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm the last dimension in float32."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def swiglu_oai(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """The clamped SwiGLU of MiniMax-M3; its beta is 1."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1)


class DenseMLP(nn.Module):
    """A gated MLP, or with `experts` several side by side: the rows of one expert follow those of the one before."""

    def __init__(self, config: Mapping[str, Any], width: int, experts: int = 1) -> None:
        super().__init__()
        self.experts, self.alpha, self.limit = experts, config["swiglu_alpha"], config["swiglu_limit"]
        self.gate_proj = nn.Linear(config["hidden_size"], experts * width, bias=False)
        self.up_proj = nn.Linear(config["hidden_size"], experts * width, bias=False)
        self.down_proj = nn.Linear(experts * width, config["hidden_size"], bias=False)

    def forward(self, x: torch.Tensor, shares: torch.Tensor | None = None) -> torch.Tensor:  # shares [B, T, E]
        """The sum over experts, each times its share."""
        inner = swiglu_oai(self.gate_proj(x), self.up_proj(x), self.alpha, self.limit)
        if shares is not None:
            inner = (inner.unflatten(-1, (self.experts, -1)) * shares.unsqueeze(-1)).flatten(-2)
        return self.down_proj(inner)


class MoE(nn.Module):
    """Routed experts and a shared one. The routing bias chooses, the scores without it weigh."""

    # How far a routing bias moves in one training step toward equal loads (balancing without an auxiliary loss).
    BALANCE_STEP = 1e-3

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.top_k, self.scale = config["num_experts_per_tok"], config["routed_scaling_factor"]
        count, width = config["num_local_experts"], config["intermediate_size"]
        self.gate = nn.Linear(config["hidden_size"], count, bias=False)
        self.e_score_correction_bias = nn.Buffer(torch.zeros(count))
        self.experts = DenseMLP(config, width, count)
        self.shared_experts = DenseMLP(config, config["shared_intermediate_size"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every token through its chosen experts and the shared one."""
        # Routing in float32: in bf16 near-ties between experts would flip between training and serving.
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.gate.weight.float()).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.top_k, dim=-1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        if self.training:
            self._balance(mask)
        shares = scores * mask
        shares = shares / shares.sum(-1, keepdim=True) * self.scale
        return self.experts(x, shares) + self.shared_experts(x)

    @torch.no_grad()
    def _balance(self, mask: torch.Tensor) -> None:
        load = mask.flatten(0, -2).mean(0)
        self.e_score_correction_bias.add_((load.mean() - load).sign(), alpha=self.BALANCE_STEP)


class Attention(nn.Module):
    """Grouped-query attention with normed, partly rotated heads; block-sparse where the config says so."""

    def __init__(self, config: Mapping[str, Any], layer: int) -> None:
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.rotary_dim, self.theta, self.layer = config["rotary_dim"], config["rope_theta"], layer
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = GemmaNorm(self.head_dim, config["rms_norm_eps"])
        self.k_norm = GemmaNorm(self.head_dim, config["rms_norm_eps"])
        sparse = config.get("sparse_attention_config") or {}
        self.sparse = sparse if sparse and sparse["sparse_attention_freq"][layer] else None
        if self.sparse:
            width = self.sparse["sparse_index_dim"]
            self.index_q_proj = nn.Linear(hidden, self.sparse["sparse_num_index_heads"] * width, bias=False)
            self.index_k_proj = nn.Linear(hidden, width, bias=False)
            self.index_q_norm = GemmaNorm(width, config["rms_norm_eps"])
            self.index_k_norm = GemmaNorm(width, config["rms_norm_eps"])

    def forward(self, x: torch.Tensor, cache: KeyValueCache | None, start: int) -> torch.Tensor:
        """Attend from the T new tokens, which follow `start` earlier ones, to all that came before."""
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        q = self._rope(self.q_norm(self._split(self.q_proj(x), self.head_dim)), positions)
        k = self._rope(self.k_norm(self._split(self.k_proj(x), self.head_dim)), positions)
        v = self._split(self.v_proj(x), self.head_dim)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if cache is not None:
            k, v = cache.append(f"{self.layer}.k", k), cache.append(f"{self.layer}.v", v)
        causal = torch.arange(k.shape[2], device=x.device) <= positions[:, None]  # [T, S]
        visible: torch.Tensor | None = causal
        if self.sparse:
            visible = self._selected(x, positions, causal, cache)
        elif start == 0:
            visible = None  # the kernel's own causal mask costs less than one that is read
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    @torch.no_grad()
    def _selected(
        self, x: torch.Tensor, positions: torch.Tensor, causal: torch.Tensor, cache: KeyValueCache | None
    ) -> torch.Tensor:  # [B, heads, T, S] bool
        """The keys of each query's best blocks: a block scores as its best key, and the latest blocks always win."""
        sparse = self.sparse or {}
        width, size = sparse["sparse_index_dim"], sparse["sparse_block_size"]
        index_q = self._rope(self.index_q_norm(self._split(self.index_q_proj(x), width)), positions)
        index_k = self._rope(self.index_k_norm(self._split(self.index_k_proj(x), width)), positions)
        if cache is not None:
            index_k = cache.append(f"{self.layer}.index_k", index_k)
        scores = (index_q.float() @ index_k.float().transpose(-1, -2)).masked_fill(~causal, -math.inf)
        keys = index_k.shape[2]
        blocks = -(-keys // size)
        best = F.pad(scores, (0, blocks * size - keys), value=-math.inf).unflatten(-1, (blocks, size)).amax(-1)
        block, own = torch.arange(blocks, device=x.device), (positions // size)[:, None]
        forced = (block < sparse["sparse_init_block"]) | (block > own - sparse["sparse_local_block"])
        best = best.masked_fill(forced & (block <= own), math.inf)
        kept = best.topk(min(sparse["sparse_topk_blocks"], blocks), dim=-1).indices
        chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, kept, True)
        visible = chosen.repeat_interleave(size, -1)[..., :keys] & causal
        return visible.repeat_interleave(self.heads // visible.shape[1], 1)

    @staticmethod
    def _split(x: torch.Tensor, width: int) -> torch.Tensor:  # [B, T, heads * width] -> [B, heads, T, width]
        return x.unflatten(-1, (-1, width)).transpose(1, 2)

    def _rope(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # [B, heads, T, D]
        """Rotate the pairs (i, i + rotary_dim / 2) of the first rotary_dim channels."""
        half = self.rotary_dim // 2
        steps = torch.arange(half, dtype=torch.float32, device=x.device) / half
        angles = positions.float()[:, None] * self.theta**-steps
        cos, sin = angles.cos(), angles.sin()
        first, second, rest = x.split([half, half, x.shape[-1] - self.rotary_dim], dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class DecoderLayer(nn.Module):
    """Attention and an MLP, each behind a norm and beside the residual stream."""

    def __init__(self, config: Mapping[str, Any], layer: int) -> None:
        super().__init__()
        self.input_layernorm = GemmaNorm(config["hidden_size"], config["rms_norm_eps"])
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = GemmaNorm(config["hidden_size"], config["rms_norm_eps"])
        # The checkpoint names the two kinds of MLP differently.
        self.is_moe = bool(config["moe_layer_freq"][layer])
        if self.is_moe:
            self.block_sparse_moe = MoE(config)
        else:
            self.mlp = DenseMLP(config, config["dense_intermediate_size"])

    def forward(self, x: torch.Tensor, cache: KeyValueCache | None, start: int) -> torch.Tensor:
        """The residual stream after this layer."""
        x = x + self.self_attn(self.input_layernorm(x), cache, start)
        return x + (self.block_sparse_moe if self.is_moe else self.mlp)(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    """The whole model, from the sizes of a target's config.json."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config["num_hidden_layers"]))
        self.norm = GemmaNorm(config["hidden_size"], config["rms_norm_eps"])
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, tokens: torch.Tensor, cache: KeyValueCache | None = None) -> TargetOutput:  # tokens [B, T]
        """Run the tokens, which follow those in the cache."""
        start = cache.length if cache is not None else 0
        x = self.embed_tokens(tokens)
        outputs = []
        for layer in self.layers:
            x = layer(x, cache, start)
            outputs.append(x)
        if cache is not None:
            cache.length += tokens.shape[1]
        return TargetOutput(outputs, self.norm(x))

    def logits(self, last_hidden: torch.Tensor) -> torch.Tensor:
        """The LM head, in float32."""
        return self.lm_head(last_hidden).float()

    def initialize(self, seed: int) -> None:
        """Fresh weights: projections by their fan-in, those that write on the residual stream smaller with depth."""
        generator = torch.Generator().manual_seed(seed)
        depth = math.sqrt(2 * len(self.layers))
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            std = 1 / math.sqrt(weight.shape[1])
            std = 0.5 if "embed_tokens" in name else std / depth if "o_proj" in name or "down_proj" in name else std
            std = std / 4 if "lm_head" in name else std
            nn.init.normal_(weight, std=std, generator=generator)
        for module in self.modules():
            if isinstance(module, Attention):
                self._tie_index(module)

    @staticmethod
    @torch.no_grad()
    def _tie_index(attention: Attention) -> None:
        """Give index queries and keys one random projection: a block then scores by how alike its tokens are."""
        if attention.sparse:
            width = attention.index_k_proj.weight.shape[0]
            for head in attention.index_q_proj.weight.split(width):
                head.copy_(attention.index_k_proj.weight)
            for part in ("index_q_proj", "index_k_proj", "index_q_norm", "index_k_norm"):
                getattr(attention, part).requires_grad_(False)
