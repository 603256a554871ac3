"""The target's own outputs: it continues prompts, and what it said, with its features, becomes the draft's lessons.

A draft is accepted for guessing what its target says, not what the text's author wrote, so it learns from the former.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_dspark.train.feature_cache import CacheFacts, FeatureCacheWriter
from sglang_dspark.train.teachers import Teacher


@dataclass(frozen=True)
class Recipe:
    """How sequences are made: a prompt cut from the text at random, and the target's continuation of it."""

    sequences: int
    prompt_tokens: int
    new_tokens: int
    # One of these a batch, in turn; 0 is greedy. What is served at temperature 0 should have most of the lessons.
    temperatures: tuple[float, ...] = (0.0,)
    batch: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what gives no lesson."""
        if self.sequences < 1 or self.prompt_tokens < 1 or self.new_tokens < 2 or not self.temperatures:
            raise ValueError(f"asked for {self}: take at least 1 sequence, 1 prompt token, 2 new tokens, 1 temperature")


def continue_prompts(
    target: Teacher,
    prompts: torch.Tensor,  # [B, P] int64
    new_tokens: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:  # [B, P + new_tokens] int64
    """The prompts with what the target says to them."""
    cache, step, rows = target.new_cache(), prompts, [prompts]
    for _ in range(new_tokens):
        logits = target.lm_head(target.run(step, cache)[1][:, -1]).float()
        if temperature > 0:
            step = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
        else:
            step = logits.argmax(-1, keepdim=True)
        rows.append(step)
    return torch.cat(rows, dim=1)


def facts_of(target: Teacher, stream: torch.Tensor, recipe: Recipe, target_layer_ids: tuple[int, ...]) -> CacheFacts:
    """What a cache made from these will say of itself."""
    return CacheFacts(
        target=target.fingerprint,
        target_layer_ids=target_layer_ids,
        hidden_size=int(target.config["hidden_size"]),
        length=recipe.prompt_tokens + recipe.new_tokens,
        recipe=f"{recipe}, {stream.numel()} tokens of text",
    )


@torch.no_grad()
def cache_features(
    target: Teacher,
    stream: torch.Tensor,  # [N], the tokens of the text
    recipe: Recipe,
    target_layer_ids: tuple[int, ...],
    folder: Path,
    *,
    end_token: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Let the target continue prompts from the text and store its tokens and features.

    Args:
        target: what speaks.
        stream: where prompts are cut from.
        recipe: how many, how long, how hot.
        target_layer_ids: the layers whose outputs are the features.
        folder: the new cache.
        end_token: what follows it is not supervised; None where a text has no end.
        progress: told the sequences done and all of them.
    """
    depth = int(target.config["num_hidden_layers"])
    wrong = [layer for layer in target_layer_ids if not 0 <= layer < depth - 1]
    if wrong or not target_layer_ids:
        raise ValueError(
            f"asked for features of layers {list(target_layer_ids)}: take some of 0 to {depth - 2} (the last layer's "
            "output has two meanings, before and after the final norm)"
        )
    if stream.numel() <= recipe.prompt_tokens:
        raise ValueError(f"asked for prompts of {recipe.prompt_tokens} tokens, found {stream.numel()} tokens of text")
    generator = torch.Generator().manual_seed(recipe.seed)
    with FeatureCacheWriter(folder, facts_of(target, stream, recipe, target_layer_ids)) as writer:
        for index, first in enumerate(range(0, recipe.sequences, recipe.batch)):
            count = min(recipe.batch, recipe.sequences - first)
            starts = torch.randint(0, stream.numel() - recipe.prompt_tokens, (count, 1), generator=generator)
            prompts = stream[starts + torch.arange(recipe.prompt_tokens)].long()
            temperature = recipe.temperatures[index % len(recipe.temperatures)]
            tokens = continue_prompts(target, prompts, recipe.new_tokens, temperature, generator)
            outputs, last_hidden = target.run(tokens, None)
            writer.append(
                tokens=tokens,
                loss_mask=supervised(tokens, recipe.prompt_tokens, end_token),
                features=torch.cat([outputs[layer] for layer in target_layer_ids], dim=-1),
                last_hidden=last_hidden,
            )
            if progress:
                progress(first + count, recipe.sequences)


def supervised(tokens: torch.Tensor, prompt_tokens: int, end_token: int | None) -> torch.Tensor:  # [B, S] bool
    """The tokens that the target chose, up to and with the first end."""
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, :prompt_tokens] = False
    if end_token is not None:
        ended = ((tokens == end_token) & mask).int().cumsum(1)
        mask &= (ended == 0) | ((ended == 1) & (tokens == end_token))
    return mask
