"""MiniMax-M3's text model in plain float32 torch, one sequence at a time: what the served target must agree with.

Written from the architecture (dense and MoE SwiGLU-OAI layers, full and block-sparse attention), not from any serving
code, and it reads the weights from the checkpoint folder itself. Slow and short on purpose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

# T new tokens, S tokens in all, V vocabulary, H hidden, D head_dim, B key blocks.


def gemma_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + weight)


def rope(x: torch.Tensor, positions: torch.Tensor, rotary_dim: int, theta: float) -> torch.Tensor:  # x [T, heads, D]
    """Rotate the pairs (i, i + rotary_dim / 2) of the first rotary_dim channels."""
    frequencies = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    angles = positions.float()[:, None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second, rest = x.split([rotary_dim // 2, rotary_dim // 2, x.shape[-1] - rotary_dim], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def swiglu_oai(gate: torch.Tensor, up: torch.Tensor, config: dict) -> torch.Tensor:
    gate = gate.clamp(max=config["swiglu_limit"])
    up = up.clamp(-config["swiglu_limit"], config["swiglu_limit"])
    return gate * torch.sigmoid(config["swiglu_alpha"] * gate) * (up + 1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """q [T, heads, D], k and v [S, kv_heads, D], visible [heads, T, S] or [T, S] bool -> [T, heads * D]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v).flatten(1)


class Cache:
    """Keys, values and index keys of every layer, for the tokens so far."""

    def __init__(self) -> None:
        self.rows: dict[str, torch.Tensor] = {}
        self.length = 0

    def append(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        self.rows[name] = torch.cat([self.rows[name], rows]) if name in self.rows else rows
        return self.rows[name]

    def truncate(self, length: int) -> None:
        self.rows = {name: rows[:length] for name, rows in self.rows.items()}
        self.length = length

    def copy(self) -> Cache:
        other = Cache()
        other.rows, other.length = dict(self.rows), self.length
        return other


@dataclass(frozen=True)
class TargetOutput:
    logits: torch.Tensor  # [T, V]
    layer_outputs: torch.Tensor  # [layers, T, H], the residual stream after each layer, before any norm


class Target:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        # Tied.
        self.weights.setdefault("lm_head.weight", self.weights["model.embed_tokens.weight"])
        self.selected_share: list[float] = []  # the share of visible keys that a sparse layer kept, a call each

    @torch.no_grad()
    def forward(self, tokens: list[int], cache: Cache | None = None) -> TargetOutput:
        """The logits after each of these tokens, which follow those in the cache."""
        cache = Cache() if cache is None else cache
        positions = torch.arange(cache.length, cache.length + len(tokens))
        x = self.weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        layer_outputs = []
        for layer in range(self.config["num_hidden_layers"]):
            x = x + self._attention(layer, self._norm(f"model.layers.{layer}.input_layernorm", x), positions, cache)
            x = x + self._mlp(layer, self._norm(f"model.layers.{layer}.post_attention_layernorm", x))
            layer_outputs.append(x)
        cache.length += len(tokens)
        logits = self._norm("model.norm", x) @ self.weights["lm_head.weight"].T
        return TargetOutput(logits, torch.stack(layer_outputs))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return gemma_norm(x, self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"])

    def _heads(self, name: str, norm: str | None, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Project, split into heads, and where a norm is named: norm each head, then rotate it."""
        heads = self._linear(name, x).unflatten(-1, (-1, self.config["head_dim"]))
        if norm is None:
            return heads
        return rope(self._norm(norm, heads), positions, self.config["rotary_dim"], self.config["rope_theta"])

    def _attention(self, layer: int, x: torch.Tensor, positions: torch.Tensor, cache: Cache) -> torch.Tensor:
        name = f"model.layers.{layer}.self_attn"
        q = self._heads(f"{name}.q_proj", f"{name}.q_norm", x, positions)
        k = cache.append(f"{name}.k", self._heads(f"{name}.k_proj", f"{name}.k_norm", x, positions))
        v = cache.append(f"{name}.v", self._heads(f"{name}.v_proj", None, x, positions))
        visible = torch.arange(k.shape[0])[None, :] <= positions[:, None]  # [T, S]
        sparse = self.config.get("sparse_attention_config") or {}
        if sparse.get("sparse_attention_freq", [0] * (layer + 1))[layer]:
            index_q = self._heads(f"{name}.index_q_proj", f"{name}.index_q_norm", x, positions)
            index_k = self._heads(f"{name}.index_k_proj", f"{name}.index_k_norm", x, positions)
            selected = select_keys(index_q, cache.append(f"{name}.index_k", index_k)[:, 0], positions, sparse)
            self.selected_share.append(float(selected[:, -1].float().mean()))
            visible = selected.repeat_interleave(q.shape[1] // selected.shape[0], 0)
        return self._linear(f"{name}.o_proj", attend(q, k, v, visible))

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        name = f"model.layers.{layer}"
        if not self.config["moe_layer_freq"][layer]:
            return self._gated(x, *(f"{name}.mlp.{part}_proj" for part in ("gate", "up", "down")))
        name += ".block_sparse_moe"
        scores = self._linear(f"{name}.gate", x).sigmoid()  # [T, experts]
        # The bias chooses the experts; the weights come from the scores without it.
        choice = scores + self.weights[f"{name}.e_score_correction_bias"]
        experts = choice.topk(self.config["num_experts_per_tok"], dim=-1).indices
        shares = scores.gather(1, experts)
        shares = shares / shares.sum(-1, keepdim=True) * self.config["routed_scaling_factor"]
        out = self._gated(x, *(f"{name}.shared_experts.{part}_proj" for part in ("gate", "up", "down")))
        for expert in range(scores.shape[1]):
            rows, slots = torch.where(experts == expert)
            routed = self._gated(x[rows], *(f"{name}.experts.{expert}.{part}" for part in ("w1", "w3", "w2")))
            out[rows] += shares[rows, slots, None] * routed
        return out

    def _gated(self, x: torch.Tensor, gate: str, up: str, down: str) -> torch.Tensor:
        return self._linear(down, swiglu_oai(self._linear(gate, x), self._linear(up, x), self.config))


def select_keys(
    index_q: torch.Tensor,  # [T, index_heads, D]
    index_k: torch.Tensor,  # [S, D]
    positions: torch.Tensor,  # [T]
    sparse: dict,
) -> torch.Tensor:  # [index_heads, T, S] bool
    """The keys a query may see: those of its best blocks, and none after itself.

    A block scores as its best key. The first blocks and the last ones up to the query's own always win, and they count
    against the number of blocks to keep.
    """
    size, keys = sparse["sparse_block_size"], index_k.shape[0]
    causal = torch.arange(keys)[None, :] <= positions[:, None]
    scores = torch.einsum("thd,sd->hts", index_q, index_k).masked_fill(~causal, float("-inf"))
    blocks = -(-keys // size)
    padded = F.pad(scores, (0, blocks * size - keys), value=float("-inf"))
    best = padded.unflatten(-1, (blocks, size)).amax(-1)  # [heads, T, B]
    block, own = torch.arange(blocks)[None, :], (positions // size)[:, None]
    forced = (block < sparse["sparse_init_block"]) | (block > own - sparse["sparse_local_block"])
    best = best.masked_fill(forced & (block <= own), float("inf"))
    kept = best.topk(min(sparse["sparse_topk_blocks"], blocks), dim=-1).indices
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, kept, True)
    return chosen.repeat_interleave(size, -1)[..., :keys] & causal
