"""MiniMax-M3 targets: SGLang's own, with what DSPARK needs on the text-only class.

SGLang captures the target's hidden states for DSPARK on its vision-language class alone.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models import minimax_m3, minimax_m3_vl


class MiniMaxM3SparseForCausalLM(minimax_m3.MiniMaxM3SparseForCausalLM):
    """The text-only target, able to hand its hidden states to a DSpark draft."""

    # Layer ids are layer outputs, before any norm; the last layer's is captured before the final norm.
    set_dspark_layers_to_capture = minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration.set_dspark_layers_to_capture

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
