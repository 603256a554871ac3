"""The DSpark draft of MiniMax-M3 in plain PyTorch, with the interface that AutoModel trains it by.

This is the oracle that serving is held to, and it trains. `forward` is the training pass: sample anchors, run all
their blocks against the target's features in one go, and return what the loss needs. `context_keys_values` and
`draft_block` are the same network one block at a time, with the context kept, as `generate` needs it. State dict names
are layout A's (facts: sglang_dspark.checkpoints.tensors).

Interface: nemo_automodel.components.speculative.dspark.draft_minimax_m3.MiniMaxM3DSparkModel (NVIDIA AutoModel 0.7.0);
written anew. Differences: the config is read strictly, a bf16 model rotates in float32 as serving does, and the
embedding has no padding row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sglang_dspark.reference.anchors import Blocks, cut_blocks
from sglang_dspark.reference.attention_mask import AttentionMask, dense_mask, flex_mask, flex_suits
from sglang_dspark.reference.config import ReferenceConfig
from sglang_dspark.reference.layers import GemmaRMSNorm, KeysValues, MiniMaxM3DSparkDecoderLayer
from sglang_dspark.reference.markov import build_markov_head
from sglang_dspark.reference.output import DSparkForwardOutput
from sglang_dspark.reference.precision import at_least_float32
from sglang_dspark.reference.rotary import RotaryEmbedding

ATTENTIONS = ("auto", "dense", "flex")

# B sequences, S tokens, K target layers, N blocks, gamma rows a block, V tokens, H hidden.


class ConfidenceHead(nn.Module):
    """A linear probe: the logit of the probability that the target accepts a row's token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:  # [..., width] -> [...]
        """The logit of each row."""
        return self.proj(features).squeeze(-1)


class MiniMaxM3DSparkModel(nn.Module):
    """The draft.

    Args:
        config: the draft's `config.json` as a table, or a config object with those names, of either layout.
        attention: "auto" takes FlexAttention on a GPU and a dense mask elsewhere; the others force one.

    Raises:
        CheckpointError: the config lacks something or asks for another network.
        ValueError: an unknown `attention`.
    """

    def __init__(self, config: Any, attention: str = "auto") -> None:
        super().__init__()
        if attention not in ATTENTIONS:
            raise ValueError(f"asked for attention {attention!r}; take one of {', '.join(ATTENTIONS)}")
        self.config = config = ReferenceConfig.of(config)
        self.attention = attention
        draft = config.draft
        hidden = draft.hidden_size
        self.target_layer_ids, self.block_size = draft.target_layer_ids, draft.block_size
        self.mask_token_id, self.num_anchors = draft.mask_token_id, config.num_anchors
        self.enable_confidence_head = draft.enable_confidence_head
        self.confidence_head_with_markov = draft.enable_confidence_head and draft.confidence_head_with_markov

        self.embed_tokens = nn.Embedding(draft.vocab_size, hidden)
        self.fc = nn.Linear(hidden * len(draft.target_layer_ids), hidden, bias=False)
        self.hidden_norm = GemmaRMSNorm(hidden, draft.rms_norm_eps)
        self.layers = nn.ModuleList(MiniMaxM3DSparkDecoderLayer(config, i) for i in range(draft.num_layers))
        self.norm = GemmaRMSNorm(hidden, draft.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, draft.vocab_size, bias=False)
        self.markov_head = build_markov_head(draft)
        self.confidence_head: ConfidenceHead | None = None
        if self.enable_confidence_head:
            self.confidence_head = ConfidenceHead(hidden + self.confidence_head_with_markov * draft.markov_rank)
        self.rotary_emb = RotaryEmbedding(draft.rotary_dim, draft.rope_theta)

    # ---- the tables shared with the target

    def initialize_embeddings_and_head(
        self, *, embed_tokens: nn.Embedding, lm_head: nn.Linear, freeze: bool = True
    ) -> None:
        """Copy the target's embedding and LM head, and leave them untrained unless `freeze` is false.

        Raises:
            ValueError: a table has another shape than the draft's.
        """
        for name, mine, theirs in (
            ("embed_tokens", self.embed_tokens.weight, embed_tokens.weight),
            ("lm_head", self.lm_head.weight, lm_head.weight),
        ):
            if mine.shape != theirs.shape:
                raise ValueError(
                    f"asked for a target whose {name} is {list(mine.shape)}, found {list(theirs.shape)}; "
                    "the draft's vocab_size and hidden_size must be the target's"
                )
        with torch.no_grad():
            self.embed_tokens.weight.copy_(embed_tokens.weight)
            self.lm_head.weight.copy_(lm_head.weight)
        if freeze:
            self.set_embedding_head_trainable(False)

    def set_embedding_head_trainable(self, trainable: bool) -> None:
        """Whether the optimizer may move the two tables."""
        self.embed_tokens.requires_grad_(trainable)
        self.lm_head.requires_grad_(trainable)

    # ---- the heads

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:  # [..., H] -> [..., V]
        """The logits before the Markov bias. Also turns the target's last hidden states (post-norm) into its logits."""
        return self.lm_head(hidden_states)

    def predict_confidence_step(
        self,
        hidden_states: torch.Tensor,  # [..., H]
        prev_token_ids: torch.Tensor | None = None,  # [...] int64
    ) -> torch.Tensor | None:  # [...] fp32
        """The logit of acceptance of each row's token, given the token before it; None without a confidence head.

        Raises:
            ValueError: the head reads Markov codes and no tokens were given.
        """
        if self.confidence_head is None:
            return None
        features = hidden_states
        if self.confidence_head_with_markov:
            if prev_token_ids is None:
                raise ValueError("this draft's confidence head reads the token before each row; pass prev_token_ids")
            codes = self.markov_head.codes(prev_token_ids).to(hidden_states.dtype)
            features = torch.cat([hidden_states, codes], dim=-1)
        return at_least_float32(self.confidence_head(features))

    def sample_draft_tokens(
        self,
        base_logits: torch.Tensor,  # [B, gamma, V]
        *,
        first_prev_token_ids: torch.Tensor,  # [B] int64, the anchors
        temperature: float = 0.0,
        hidden_states: torch.Tensor | None = None,  # [B, gamma, H]; the vanilla head needs none
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a block's tokens left to right: tokens [B, gamma] and the logits they came from, bias included."""
        if base_logits.shape[1] == 0:
            return base_logits.new_empty(base_logits.shape[:2], dtype=torch.long), base_logits
        return self.markov_head.sample_block(base_logits, first_prev_token_ids, hidden_states, temperature, generator)

    def sample_draft_token_step(
        self,
        base_logits: torch.Tensor,  # [B, V]
        *,
        prev_token_ids: torch.Tensor,  # [B] int64
        temperature: float = 0.0,
        hidden_states: torch.Tensor | None = None,  # [B, H]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One row by itself: tokens [B] and logits [B, V]. An rnn head starts from its zero state here.

        Raises:
            ValueError: the logits are not of one row.
        """
        if base_logits.ndim != 2:
            raise ValueError(
                f"asked for logits [B, V] of one row, found {list(base_logits.shape)}; pass one row a call"
            )
        hidden = None if hidden_states is None else hidden_states.unsqueeze(1)
        tokens, logits = self.sample_draft_tokens(
            base_logits.unsqueeze(1),
            first_prev_token_ids=prev_token_ids,
            temperature=temperature,
            hidden_states=hidden,
        )
        return tokens[:, 0], logits[:, 0]

    # ---- one block at a time

    def context_keys_values(
        self,
        target_hidden_states: torch.Tensor,  # [B, S, K * H]
        positions: torch.Tensor,  # [B, S] int64
    ) -> list[KeysValues]:
        """Every layer's keys and values of some context tokens."""
        context = self._project_context(target_hidden_states)
        cos, sin = self.rotary_emb(positions)
        return [layer.self_attn.keys_values(context, cos, sin) for layer in self._decoder_layers()]

    def draft_block(
        self,
        anchor_ids: torch.Tensor,  # [B] int64
        context: list[KeysValues],  # of the S tokens before the anchor, position 0 first
        block_size: int | None = None,
    ) -> torch.Tensor:  # [B, gamma, H]
        """The final hidden states of the block that follows the context."""
        gamma = block_size or self.block_size
        tokens = anchor_ids.new_full((anchor_ids.shape[0], gamma), self.mask_token_id)
        tokens[:, 0] = anchor_ids
        start = context[0][0].shape[1]
        cos, sin = self.rotary_emb(torch.arange(start, start + gamma, device=tokens.device).expand_as(tokens))
        block = self.embed_tokens(tokens)
        for layer, kept in zip(self._decoder_layers(), context, strict=True):
            block = layer.step(block, kept, cos, sin)
        return self.norm(block)

    # ---- training

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, S] int64, padded on the right if at all
        target_hidden_states: torch.Tensor,  # [B, S, K * H], outputs of the target's layers, side by side
        loss_mask: torch.Tensor,  # [B, S], above 0.5 where a token is supervised; padding never is
        target_last_hidden_states: torch.Tensor | None = None,  # [B, S, H], after the target's final norm
    ) -> DSparkForwardOutput:
        """Draft from sampled anchors, teacher-forced.

        Raises:
            ValueError: a tensor's shape does not fit the others or the config.
        """
        self._check_batch(input_ids, target_hidden_states, loss_mask, target_last_hidden_states)
        blocks = cut_blocks(loss_mask, self.num_anchors, self.block_size)
        hidden = self._run_blocks(input_ids, target_hidden_states, blocks)
        labels = blocks.label_positions.flatten(1)
        target_ids = input_ids.gather(1, labels).view_as(blocks.label_positions)
        anchor_ids = input_ids.gather(1, blocks.anchors)
        previous = torch.cat([anchor_ids.unsqueeze(-1), target_ids[..., :-1]], dim=-1)
        target_logits = None
        if target_last_hidden_states is not None:
            # What the target says for a token stands at the token before it.
            rows = (labels - 1).clamp(min=0).unsqueeze(-1).expand(-1, -1, target_last_hidden_states.shape[-1])
            said = target_last_hidden_states.gather(1, rows)
            target_logits = self.compute_logits(said).unflatten(1, blocks.label_positions.shape[1:])
        return DSparkForwardOutput(
            draft_logits=self.markov_head.block_logits(self.compute_logits(hidden), previous, hidden),
            target_ids=target_ids,
            eval_mask=blocks.supervised,
            block_keep_mask=blocks.keep,
            confidence_pred=self.predict_confidence_step(hidden, previous),
            aligned_target_logits=target_logits,
        )

    def _run_blocks(
        self, input_ids: torch.Tensor, target_hidden_states: torch.Tensor, blocks: Blocks
    ) -> torch.Tensor:  # [B, N, gamma, H]
        """All blocks of the batch through the layers."""
        batch, length = input_ids.shape
        shape = blocks.label_positions.shape
        tokens = torch.full(shape, self.mask_token_id, dtype=torch.long, device=input_ids.device)
        anchor_ids = input_ids.gather(1, blocks.anchors)
        tokens[..., 0] = torch.where(blocks.keep, anchor_ids, self.mask_token_id)
        hidden = self.embed_tokens(tokens.flatten(1))
        before = torch.arange(length, device=input_ids.device).expand(batch, -1)
        cos, sin = self.rotary_emb(torch.cat([before, blocks.row_positions], dim=1))
        context = self._project_context(target_hidden_states)
        mask = self._mask(blocks, length, hidden)
        for layer in self._decoder_layers():
            hidden = layer(context, hidden, mask, cos, sin)
        return self.norm(hidden).view(*shape, -1)

    def _decoder_layers(self) -> Iterator[MiniMaxM3DSparkDecoderLayer]:
        return (layer for layer in self.layers if isinstance(layer, MiniMaxM3DSparkDecoderLayer))

    def _project_context(self, target_hidden_states: torch.Tensor) -> torch.Tensor:  # [B, S, K * H] -> [B, S, H]
        return self.hidden_norm(self.fc(target_hidden_states))

    def _mask(self, blocks: Blocks, length: int, hidden: torch.Tensor) -> AttentionMask:
        flex = self.attention == "flex" or (self.attention == "auto" and flex_suits(hidden, self.config.draft.head_dim))
        build = flex_mask if flex else dense_mask
        return build(blocks.anchors, blocks.keep, length, self.block_size)

    def _check_batch(
        self, ids: torch.Tensor, features: torch.Tensor, loss_mask: torch.Tensor, last: torch.Tensor | None
    ) -> None:
        hidden = self.config.draft.hidden_size
        wanted = [
            ("target_hidden_states", features, (*ids.shape, hidden * len(self.target_layer_ids))),
            ("loss_mask", loss_mask, tuple(ids.shape)),
        ]
        if last is not None:
            wanted.append(("target_last_hidden_states", last, (*ids.shape, hidden)))
        wrong = [
            f"{name}: asked for {list(shape)}, found {list(tensor.shape)}"
            for name, tensor, shape in wanted
            if tuple(tensor.shape) != shape
        ]
        if wrong:
            raise ValueError(
                f"this batch of input_ids {list(ids.shape)} cannot be drafted: {'; '.join(wrong)}; the features are "
                f"the outputs of target layers {list(self.target_layer_ids)} side by side"
            )
