"""The DSpark draft in plain float32 torch, read from either checkpoint layout: what the served draft must propose.

The context keys and values of a layer are k/v_proj(hidden_norm(fc(features))), keys normed per head and rotated to the
token's own position. The block is the anchor and gamma - 1 masks; every row sees the whole context and the whole block.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.oracle.target import Target, attend, gemma_norm, rope, swiglu_oai

RELEASED_PREFIX = "language_model.model.dspark."


@dataclass(frozen=True)
class Proposal:
    tokens: list[int]  # gamma
    logits: torch.Tensor  # [gamma, V], Markov bias included
    confidence: torch.Tensor | None  # [gamma], the probability that the target accepts, given all before were


class Draft:
    def __init__(self, folder: Path, target: Target) -> None:
        """Read either layout; the released one has no embedding and no LM head, so those are the target's."""
        self.config = json.loads((folder / "config.json").read_text())
        tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        if self.config["architectures"] == ["MiniMaxM3DSparkModel"]:
            self._read_automodel(tensors)
        else:
            self._read_released(tensors, target)
        self.context_k: list[torch.Tensor] = []
        self.context_v: list[torch.Tensor] = []
        self.reset()

    def _read_automodel(self, tensors: dict[str, torch.Tensor]) -> None:
        config = self.config
        self.weights = tensors
        self.depth, self.block_size = config["num_hidden_layers"], config["block_size"]
        self.mask_token_id, self.target_layer_ids = config["mask_token_id"], config["target_layer_ids"]
        self.head_type = config["markov_head_type"]

    def _read_released(self, tensors: dict[str, torch.Tensor], target: Target) -> None:
        config = self.config
        plain = {name.removeprefix(RELEASED_PREFIX).replace(".decoder_layer", ""): t for name, t in tensors.items()}
        plain["norm.weight"] = plain.pop("final_norm.weight")
        plain["embed_tokens.weight"] = target.weights["model.embed_tokens.weight"]
        plain["lm_head.weight"] = target.weights["lm_head.weight"]
        self.weights = plain
        self.depth, self.block_size = config["dflash_config"]["num_hidden_layers"], config["dspark_block_size"]
        self.mask_token_id = config["dspark_noise_token_id"]
        self.target_layer_ids = config["dflash_config"]["target_layer_ids"]
        self.head_type = config["dspark_markov_head_type"]

    def reset(self) -> None:
        """Forget the context."""
        empty = torch.zeros(0, self.config["num_key_value_heads"], self.config["head_dim"])
        self.context_k, self.context_v = [empty] * self.depth, [empty] * self.depth

    @torch.no_grad()
    def append_context(self, layer_outputs: torch.Tensor) -> None:  # [target layers, T, H]
        """Take the target's features of the T tokens that follow those seen so far."""
        features = torch.cat([layer_outputs[layer] for layer in self.target_layer_ids], dim=-1)
        context = self._norm("hidden_norm", F.linear(features, self.weights["fc.weight"]))
        start = self.context_k[0].shape[0]
        positions = torch.arange(start, start + context.shape[0])
        for layer in range(self.depth):
            name = f"layers.{layer}.self_attn"
            k = self._heads(f"{name}.k_proj", f"{name}.k_norm", context, positions)
            v = self._heads(f"{name}.v_proj", None, context, positions)
            self.context_k[layer] = torch.cat([self.context_k[layer], k])
            self.context_v[layer] = torch.cat([self.context_v[layer], v])

    @torch.no_grad()
    def propose(self, anchor: int, gamma: int | None = None) -> Proposal:
        """Greedy proposals for the gamma tokens after the anchor, which sits right behind the context."""
        gamma = gamma or self.block_size
        tokens = torch.tensor([anchor] + [self.mask_token_id] * (gamma - 1))
        start = self.context_k[0].shape[0]
        positions = torch.arange(start, start + gamma)
        x = self.weights["embed_tokens.weight"][tokens]
        for layer in range(self.depth):
            x = x + self._attention(layer, self._norm(f"layers.{layer}.input_layernorm", x), positions)
            x = x + self._mlp(layer, self._norm(f"layers.{layer}.post_attention_layernorm", x))
        hidden = self._norm("norm", x)
        return self._decode(anchor, hidden, hidden @ self.weights["lm_head.weight"].T)

    def _decode(self, anchor: int, hidden: torch.Tensor, base: torch.Tensor) -> Proposal:
        """Left to right: each row's logits get the Markov bias of the token just chosen."""
        previous, state = [anchor], torch.zeros(self.weights["markov_head.markov_w1.weight"].shape[1])
        rows = []
        for row in range(base.shape[0]):
            latent, state = self._latent(previous[-1], hidden[row], state)
            rows.append(base[row] + self.weights["markov_head.markov_w2.weight"] @ latent)
            previous.append(int(rows[-1].argmax()))
        return Proposal(previous[1:], torch.stack(rows), self._confidence(previous[:-1], hidden))

    def _latent(self, token: int, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.weights["markov_head.markov_w1.weight"][token]
        if self.head_type == "vanilla":
            return code, state
        if self.head_type == "gated":
            return torch.sigmoid(self._affine("markov_head.gate_proj", torch.cat([hidden, code]))) * code, state
        gate, candidate, output = self._affine("markov_head.joint_proj", torch.cat([state, code, hidden])).chunk(3)
        gate = gate.sigmoid()
        return output.tanh(), gate * state + (1 - gate) * candidate.tanh()

    def _confidence(self, previous: list[int], hidden: torch.Tensor) -> torch.Tensor | None:
        if "confidence_head.proj.weight" not in self.weights:
            return None
        features = [hidden]
        if self.config["confidence_head_with_markov"]:
            features.append(self.weights["markov_head.markov_w1.weight"][torch.tensor(previous)])
        return torch.sigmoid(self._affine("confidence_head.proj", torch.cat(features, dim=-1)))[:, 0]

    def _attention(self, layer: int, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        name = f"layers.{layer}.self_attn"
        q = self._heads(f"{name}.q_proj", f"{name}.q_norm", x, positions)
        block_k = self._heads(f"{name}.k_proj", f"{name}.k_norm", x, positions)
        block_v = self._heads(f"{name}.v_proj", None, x, positions)
        k = torch.cat([self.context_k[layer], block_k])
        v = torch.cat([self.context_v[layer], block_v])
        everything = torch.ones(x.shape[0], k.shape[0], dtype=torch.bool)
        return F.linear(attend(q, k, v, everything), self.weights[f"{name}.o_proj.weight"])

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (self.weights[f"layers.{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return F.linear(swiglu_oai(F.linear(x, gate), F.linear(x, up), self.config), down)

    def _heads(self, name: str, norm: str | None, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, self.weights[f"{name}.weight"]).unflatten(-1, (-1, self.config["head_dim"]))
        if norm is None:
            return heads
        return rope(self._norm(norm, heads), positions, self.config["rotary_dim"], self.config["rope_theta"])

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return gemma_norm(x, self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def _affine(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])
