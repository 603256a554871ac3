"""Verifying a sampled draft chain on a CPU, where SGLang has only a Triton kernel.

Speculative sampling (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1):
accept draft token x with probability min(1, p(x) / q(x)); at the first rejection draw from the normalised positive
part of p - q, and from p itself when all were accepted. The result is distributed as the target's own samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def around_chain_speculative_sampling(
    original: Callable[..., None],
    predicts: torch.Tensor,  # [B * W] int, written: the token at each accepted slot, then the last one drawn
    accept_index: torch.Tensor,  # [B, W] int, written: flat slots of the accepted tokens
    accept_token_num: torch.Tensor,  # [B] int, written: accepted draft tokens
    candidates: torch.Tensor,  # [B, W] int: the anchor, then W - 1 draft tokens
    retrive_index: torch.Tensor,  # [B, W] int: flat slot of each candidate
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    uniform_samples: torch.Tensor,  # [B, W] in [0, 1)
    uniform_samples_for_final_sampling: torch.Tensor,  # [B]
    target_probs: torch.Tensor,  # [B, W, V]
    draft_probs: torch.Tensor,  # [B, W - 1 or W, V]
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
) -> None:
    """Fill the three output tensors as SGLang's kernel does.

    Raises:
        NotImplementedError: block verification, which SGLang offers on GPUs only.
    """
    if candidates.device.type != "cpu":
        return original(
            predicts,
            accept_index,
            accept_token_num,
            candidates,
            retrive_index,
            retrive_next_token,
            retrive_next_sibling,
            uniform_samples,
            uniform_samples_for_final_sampling,
            target_probs,
            draft_probs,
            threshold_single,
            threshold_acc,
            deterministic,
            block_verification=block_verification,
        )
    if block_verification:
        raise NotImplementedError("block verification is not available on the CPU; leave the option out")
    batch, width = candidates.shape
    drafted = width - 1
    rows = torch.arange(batch)
    tokens = candidates[:, 1:].long()
    p = target_probs[:, :drafted].gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    q = draft_probs[:, :drafted].gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # A padded column has no draft probability: it is never accepted.
    accepted = (q > 0) & (q <= 1) & (uniform_samples[:, :drafted] * q < p)
    num_accepted = accepted.long().cumprod(-1).sum(-1)

    p_next = target_probs[rows, num_accepted].double()
    q_next = draft_probs[rows, num_accepted.clamp(max=drafted - 1)].double()
    q_next = torch.where((q_next >= 0) & (q_next <= 1), q_next, 0.0)
    all_accepted = (num_accepted == drafted).unsqueeze(-1)
    weights = torch.where(all_accepted, p_next, (p_next - q_next).clamp(min=0))
    cumulative = weights.cumsum(-1)
    reached = cumulative > (uniform_samples_for_final_sampling.double() * cumulative[:, -1]).unsqueeze(-1)
    # Rounding can leave nothing reached; the last token with any weight is then the draw.
    last = weights.shape[-1] - 1 - (weights > 0).long().flip(-1).argmax(-1)
    drawn = torch.where(reached.any(-1), reached.long().argmax(-1), last)

    accept_token_num.copy_(num_accepted)
    kept = torch.arange(width) <= num_accepted.unsqueeze(-1)
    accept_index[:batch, :width][kept] = retrive_index[:batch, :width][kept].to(accept_index.dtype)
    emitted = torch.cat([tokens, tokens.new_zeros(batch, 1)], dim=1)
    emitted[rows, num_accepted] = drawn
    predicts.view(-1)[retrive_index[:batch, :width][kept].long()] = emitted[kept].to(predicts.dtype)
    return None
