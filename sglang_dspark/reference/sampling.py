"""From logits to tokens: greedy, at a temperature, and the two distributions of speculative sampling.

Source: Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1.
"""

from __future__ import annotations

import torch

from sglang_dspark.reference.precision import at_least_float32

# At and below this temperature sampling is greedy: logits divided by less would leave float32's range.
GREEDY_TEMPERATURE = 1e-5


def probabilities(logits: torch.Tensor, temperature: float) -> torch.Tensor:  # [..., V] -> [..., V]
    """softmax(logits / temperature) in float32 at least; all of it on the first largest logit where greedy.

    Raises:
        ValueError: a negative temperature.
    """
    if temperature < 0:
        raise ValueError(f"asked for temperature {temperature}; take 0 (greedy) or a positive number")
    if temperature < GREEDY_TEMPERATURE:
        certain = torch.zeros_like(at_least_float32(logits))
        return certain.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.softmax(at_least_float32(logits) / temperature, dim=-1)


def draw(weights: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:  # [..., V] -> [...] int64
    """One token for each row of weights, which need not add up to 1."""
    return torch.multinomial(weights.flatten(0, -2), 1, generator=generator).view(weights.shape[:-1])


def sample_tokens(
    logits: torch.Tensor,  # [..., V]
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:  # [...] int64
    """One token a row."""
    if 0 <= temperature < GREEDY_TEMPERATURE:
        return logits.argmax(-1)
    return draw(probabilities(logits, temperature), generator)


def verify_block(
    target: torch.Tensor,  # [B, gamma + 1, V] the target's probabilities after the anchor and after each proposal
    draft: torch.Tensor,  # [B, gamma, V] the probabilities each proposal was drawn from
    proposals: torch.Tensor,  # [B, gamma] int64
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep a prefix of each row's proposals and add one token, so that the result is distributed as the target's own.

    A proposal x is kept with probability min(1, p(x) / q(x)). After the first refusal the next token comes from
    max(0, p - q), rescaled; after none, from the target's last row. With greedy distributions that is: keep while
    equal, then the target's own choice.

    Returns:
        How many proposals are kept [B], and the token that follows them [B].
    """
    gamma = proposals.shape[1]
    asked = proposals.unsqueeze(-1)
    p = target[:, :gamma].gather(-1, asked).squeeze(-1)
    q = draft.gather(-1, asked).squeeze(-1)
    lots = torch.rand(proposals.shape, generator=generator, device=proposals.device, dtype=p.dtype)
    kept = (lots * q < p).int().cumprod(-1).sum(-1)  # [B]
    # q past the last row is nothing, so that the bonus token falls under the same rule.
    nothing = torch.zeros_like(target[:, :1])
    row = kept.view(-1, 1, 1).expand(-1, 1, target.shape[-1])
    wanted = target.gather(1, row).squeeze(1)
    given = torch.cat([draft.to(target.dtype), nothing], dim=1).gather(1, row).squeeze(1)
    rest = (wanted - given).clamp(min=0)
    # p equal to q up to rounding leaves no rest: any refusal there is rounding too.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, wanted)
    return kept, draw(rest, generator)
