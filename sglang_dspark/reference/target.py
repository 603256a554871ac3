"""What generation asks of a target model, and any Hugging Face causal LM as one.

A target is asked for two things after each token: its logits, and the residual stream behind some of its layers before
any norm, which is what a draft's context is made of. transformers returns the latter as `hidden_states[L + 1]`, except
for the last layer: there stands the output of the final norm. So the last layer is read by a hook.

A session is one sequence. Verification appends tokens and may take the last ones back, so the cache must be one that
can be shortened; a recurrent state cannot, and is refused instead of being used wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


@dataclass(frozen=True)
class TargetStep:
    """What the target said of T new tokens."""

    logits: torch.Tensor  # [T, V]
    features: torch.Tensor  # [T, K * H], the outputs of the asked layers side by side, before any norm


class TargetSession(Protocol):
    """One sequence. `generate` needs nothing else of a target."""

    def extend(self, token_ids: torch.Tensor) -> TargetStep:
        """Append tokens [T] int64 and return what the target says of each."""

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""


class Target(Protocol):
    """A model that can start sequences."""

    def start(self, layer_ids: Sequence[int]) -> TargetSession:
        """An empty sequence whose steps carry the outputs of these layers, in this order."""


class HuggingFaceTarget:
    """A transformers causal LM as a target.

    Args:
        model: a `...ForCausalLM` in evaluation mode.
        use_cache: false runs the whole sequence again at every step: slow, and right for models whose state cannot be
            taken back.
    """

    def __init__(self, model: nn.Module, use_cache: bool = True) -> None:
        self.model, self.use_cache = model, use_cache
        self.num_layers = int(model.config.get_text_config().num_hidden_layers)  # type: ignore[operator, union-attr]

    def start(self, layer_ids: Sequence[int]) -> TargetSession:
        """An empty sequence.

        Raises:
            ValueError: a layer that the model does not have.
        """
        missing = [i for i in layer_ids if not 0 <= i < self.num_layers]
        if missing:
            raise ValueError(
                f"asked for the outputs of target layers {list(layer_ids)}, found a model with layers 0 to "
                f"{self.num_layers - 1}; use the target that this draft was made for"
            )
        return _HuggingFaceSession(self, tuple(layer_ids))


class _HuggingFaceSession:
    def __init__(self, target: HuggingFaceTarget, layer_ids: tuple[int, ...]) -> None:
        self.target, self.layer_ids = target, layer_ids
        self.tokens = torch.empty(0, dtype=torch.long)
        self.cache: Any = None

    @torch.no_grad()
    def extend(self, token_ids: torch.Tensor) -> TargetStep:
        """Append tokens [T]."""
        model, device = self.target.model, next(self.target.model.parameters()).device
        self.tokens = torch.cat([self.tokens, token_ids.cpu()])
        fed = token_ids if self.target.use_cache else self.tokens
        with _last_layer_output(model, self.target.num_layers - 1 in self.layer_ids) as last:
            output = model(
                input_ids=fed.to(device).unsqueeze(0),
                past_key_values=self.cache,
                use_cache=self.target.use_cache,
                output_hidden_states=True,
            )
        if self.target.use_cache:
            self.cache = _checked_cache(getattr(output, "past_key_values", None))
        layers = self._layer_outputs(output.hidden_states, last)
        new = len(token_ids)
        return TargetStep(output.logits[0, -new:], torch.cat([layer[0, -new:] for layer in layers], dim=-1))

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        surplus = len(self.tokens) - length
        self.tokens = self.tokens[:length]
        if surplus and self.cache is not None:
            self.cache.crop(-surplus)  # by a negative number: a positive one means the new length, and is deprecated
            if self.cache.get_seq_length() != length:
                raise ValueError(
                    f"asked the target's {type(self.cache).__name__} to keep {length} tokens, found "
                    f"{self.cache.get_seq_length()} left; use HuggingFaceTarget(model, use_cache=False)"
                )

    def _layer_outputs(self, hidden_states: Any, last: list[torch.Tensor]) -> list[torch.Tensor]:  # each [1, T, H]
        layers = self.target.num_layers
        if hidden_states is None or len(hidden_states) != layers + 1:
            found = "none" if hidden_states is None else str(len(hidden_states))
            raise ValueError(
                f"asked the target for {layers + 1} hidden states (the embedding and {layers} layers), found {found}; "
                "a draft needs a model that returns them all with output_hidden_states=True"
            )
        return [last[0] if i == layers - 1 else hidden_states[i + 1] for i in self.layer_ids]


@contextmanager
def _last_layer_output(model: Any, wanted: bool) -> Iterator[list[torch.Tensor]]:
    """Where wanted, the list holds the last decoder layer's own output once the model has run."""
    seen: list[torch.Tensor] = []
    if not wanted:
        yield seen
        return
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None:
        raise ValueError(
            f"asked for the last layer's output before the final norm, found no list of layers in "
            f"{type(model).__name__}; use a draft of earlier layers"
        )
    handle = layers[-1].register_forward_hook(
        lambda _module, _inputs, output: seen.append(output[0] if isinstance(output, tuple) else output)
    )
    try:
        yield seen
    finally:
        handle.remove()


def _checked_cache(cache: Any) -> Any:
    """The cache, if every layer of it can forget its last tokens."""
    from transformers.cache_utils import DynamicLayer

    layers = getattr(cache, "layers", [])
    if not layers or not all(isinstance(layer, DynamicLayer) for layer in layers):
        kinds = sorted({type(layer).__name__ for layer in layers})
        raise ValueError(
            f"asked for a cache that can be shortened, found {type(cache).__name__} of {kinds}; "
            "use HuggingFaceTarget(model, use_cache=False)"
        )
    return cache
