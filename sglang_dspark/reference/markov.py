"""The three Markov heads: a low-rank bias on each row's logits from the token just before it.

A draft block is computed in parallel, so its rows know nothing of each other's choices. The head brings that back for
the price of two thin matrices: logits_k += W2 latent_k, where the latent comes from the code e = W1[x_{k-1}].

    vanilla   latent = e
    gated     latent = sigmoid(G [h_k; e]) * e
    rnn       [g; c; o] = J [s; e; h_k],  latent = tanh(o),  s' = sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c)

h_k is row k's final hidden state; the rnn's state starts at zero in every block.

Semantics and parameter names: nemo_automodel.components.speculative.dspark.markov_head (NVIDIA AutoModel 0.7.0);
written anew around one function, `step`.
"""

from __future__ import annotations

import torch
from torch import nn

from sglang_dspark.checkpoints import DraftConfig
from sglang_dspark.reference.sampling import sample_tokens


class MarkovHead(nn.Module):
    """The vanilla head, and what the two others share. r is the rank."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.rank = config.markov_rank
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.vocab_size, bias=False)

    def codes(self, token_ids: torch.Tensor) -> torch.Tensor:  # [...] -> [..., r]
        """The code of each token."""
        return self.markov_w1(token_ids)

    def step(
        self,
        codes: torch.Tensor,  # [..., r]
        hidden: torch.Tensor,  # [..., hidden]
        state: torch.Tensor,  # [..., r]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One row: the latent that W2 turns into a bias, and the state for the row after it."""
        return codes, state

    def latents(self, codes: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:  # [..., gamma, r or hidden]
        """The latents of a whole block whose tokens are known: all rows at once, as nothing passes between them."""
        return self.step(codes, hidden, codes)[0]

    def block_logits(
        self,
        base_logits: torch.Tensor,  # [..., gamma, V]
        previous_ids: torch.Tensor,  # [..., gamma] int64
        hidden: torch.Tensor,  # [..., gamma, hidden]
    ) -> torch.Tensor:
        """Training: the logits of a block whose tokens are known."""
        return base_logits + self.markov_w2(self.latents(self.codes(previous_ids), hidden))

    def sample_block(
        self,
        base_logits: torch.Tensor,  # [B, gamma, V]
        first_previous_ids: torch.Tensor,  # [B] int64, the anchors
        hidden: torch.Tensor | None,  # [B, gamma, hidden]; the vanilla head needs none
        temperature: float,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Left to right: each row's logits get the bias of the token just chosen. Tokens [B, gamma], logits."""
        previous, state = first_previous_ids, self.start(base_logits.shape[0])
        tokens, rows = [], []
        for row in range(base_logits.shape[1]):
            codes = self.codes(previous)
            latent, state = self.step(codes, self._need(hidden, codes, row), state)
            rows.append(base_logits[:, row] + self.markov_w2(latent))
            previous = sample_tokens(rows[-1], temperature, generator)
            tokens.append(previous)
        return torch.stack(tokens, dim=1), torch.stack(rows, dim=1)

    def start(self, batch: int) -> torch.Tensor:  # [B, r]
        """The state before a block's first row."""
        return self.markov_w1.weight.new_zeros(batch, self.rank)

    def _need(self, hidden: torch.Tensor | None, codes: torch.Tensor, row: int) -> torch.Tensor:
        return codes if hidden is None else hidden[:, row]


class _HiddenMarkovHead(MarkovHead):
    """A head that also reads the hidden states."""

    def _need(self, hidden: torch.Tensor | None, codes: torch.Tensor, row: int) -> torch.Tensor:
        if hidden is None:
            raise ValueError(
                f"the {type(self).__name__} needs the block's hidden states, found none; "
                "pass hidden_states, the model's output that the logits were computed from"
            )
        return hidden[:, row]


class GatedMarkovHead(_HiddenMarkovHead):
    """Opens each channel of the code by a gate that sees the hidden state."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)

    def step(self, codes: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One row, or all of a block's rows: there is no state."""
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, codes], dim=-1))) * codes, state


class RnnMarkovHead(_HiddenMarkovHead):
    """Carries a state from row to row, so that a row's bias depends on all tokens of the block before it."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        self.joint_proj = nn.Linear(2 * self.rank + config.hidden_size, 3 * self.rank)

    def step(self, codes: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One row."""
        gate, candidate, output = self.joint_proj(torch.cat([state, codes, hidden], dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)

    def latents(self, codes: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:  # [..., gamma, r or hidden]
        """Row after row."""
        state, rows = torch.zeros_like(codes[..., 0, :]), []
        for row in range(codes.shape[-2]):
            latent, state = self.step(codes[..., row, :], hidden[..., row, :], state)
            rows.append(latent)
        return torch.stack(rows, dim=-2)


def build_markov_head(config: DraftConfig) -> MarkovHead:
    """The head that the config names; the config was checked when it was read."""
    heads = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RnnMarkovHead}
    return heads[config.markov_head_type](config)
