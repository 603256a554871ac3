"""MiniMax-M3 targets: SGLang's own, with what DSPARK needs on the text-only class.

SGLang captures the target's hidden states for DSPARK on its vision-language class alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.models import minimax_m3, minimax_m3_vl


class MiniMaxM3SparseForCausalLM(minimax_m3.MiniMaxM3SparseForCausalLM):
    """The text-only target, able to hand its hidden states to a DSpark draft."""

    # Layer ids are layer outputs, before any norm; the last layer's is captured before the final norm.
    set_dspark_layers_to_capture = minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration.set_dspark_layers_to_capture

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """SGLang's loading, and the embedding for an LM head where the config ties them.

        SGLang 0.5.23 builds a head of its own whatever the config says, and a checkpoint without one leaves it unset.
        """
        names: list[str] = []

        def noted() -> Iterable[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                names.append(name)
                yield name, weight

        loaded = super().load_weights(noted())
        self._has_own_head = self._has_own_head or any(name.startswith("lm_head.") for name in names)
        if getattr(self.config, "tie_word_embeddings", False) and not self._has_own_head:
            self.lm_head.weight.data.copy_(self.model.embed_tokens.weight.data)
        return loaded

    _has_own_head = False

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,  # [T] int64
        positions: torch.Tensor,  # [T] int64
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,  # [T, hidden]
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """SGLang's forward, which expects captured states of every batch; an idle batch of no tokens has none."""
        hidden = self.model(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        if not self.pp_group.is_last_rank:
            return hidden
        captured = None
        if isinstance(hidden, tuple):
            hidden, captured = hidden
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch, captured)


# The vision-language class is SGLang's own; listed here, it is found without importing every other model.
EntryClass = [MiniMaxM3SparseForCausalLM, minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration]
