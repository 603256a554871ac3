"""What a demo pair looks like: one frozen value that the builders read and nothing else.

Two presets. `text` is the pair people serve: 512 tokens of byte-level BPE, dense and MoE layers, full and block-sparse
attention. `tiny` has a handful of tokens: a test can write down the exact distribution over the next few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

HEAD_TYPES = ("vanilla", "gated", "rnn")


@dataclass(frozen=True)
class DemoSpec:
    """The sizes and options of one demo pair; start from `text()` or `tiny()` and change fields by keyword."""

    name: str = "text"
    seed: int = 21
    # Shared by target and draft.
    vocab_size: int = 512
    hidden_size: int = 128
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    rotary_dim: int = 64
    rope_theta: float = 5e6
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6
    # Target. One entry a layer: 1 is a MoE MLP, 1 is block-sparse attention.
    moe_layers: tuple[int, ...] = (0, 1, 1, 1)
    sparse_layers: tuple[int, ...] = (0, 1, 0, 1)
    intermediate_size: int = 64
    dense_intermediate_size: int = 128
    num_local_experts: int = 4
    num_experts_per_tok: int = 2
    sparse_block_size: int = 16
    sparse_topk_blocks: int = 4
    sparse_init_blocks: int = 1
    sparse_local_blocks: int = 1
    # How strongly the target's layers write on the residual stream, and how sharply a logit stands out.
    target_layer_gain: float = 0.57
    logit_scale: float = 1.0
    # True: no LM head, the embedding in its place. Nothing is as near to a token's embedding as itself, so the target
    # mostly repeats its last token, and the draft's successor table says so.
    tie_word_embeddings: bool = False
    # Draft. Its MLP width differs from both widths of the target, so that reading the wrong key cannot go unseen.
    draft_layers: int = 2
    draft_intermediate_size: int = 96
    block_size: int = 7
    target_layer_ids: tuple[int, ...] = (0, 2)
    markov_rank: int = 64
    markov_head_type: str = "vanilla"
    markov_scale: float = 1.0
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    # True: the draft proposes from another successor table, so that nearly every proposal should be refused.
    wrong_draft: bool = False

    @classmethod
    def text(cls, **changes: Any) -> DemoSpec:
        """The pair with a real tokenizer and readable output."""
        return replace(cls(), **changes)

    @classmethod
    def tiny(cls, vocab_size: int = 8, **changes: Any) -> DemoSpec:
        """A pair of a few tokens whose next-token distributions are broad; its last token is the mask."""
        preset: dict[str, Any] = {
            "name": "tiny",
            "vocab_size": vocab_size,
            "hidden_size": 64,
            "markov_rank": 16,
            "sparse_block_size": 4,
            "sparse_topk_blocks": 3,
            "logit_scale": 0.25,
            "target_layer_gain": 0.85,
        }
        return replace(cls(), **{**preset, **changes})

    @property
    def num_hidden_layers(self) -> int:
        """The depth of the target."""
        return len(self.moe_layers)

    def __post_init__(self) -> None:
        """Refuse what no builder can make, every reason in one message."""
        reasons = [reason for holds, reason in self._rules() if not holds]
        if reasons:
            raise ValueError("this demo pair cannot be built:\n  - " + "\n  - ".join(reasons))

    def _rules(self) -> list[tuple[bool, str]]:
        last = self.num_hidden_layers - 1
        ids = self.target_layer_ids
        return [
            (self.vocab_size >= 4, f"vocab_size is {self.vocab_size}: take 4 or more"),
            (
                len(self.sparse_layers) == len(self.moe_layers),
                f"moe_layers has {len(self.moe_layers)} entries, sparse_layers {len(self.sparse_layers)}: one a layer",
            ),
            (1 <= self.block_size <= 31, f"block_size is {self.block_size}: take 1 to 31"),
            (
                self.markov_head_type in HEAD_TYPES,
                f"markov_head_type is {self.markov_head_type!r}: take one of {', '.join(HEAD_TYPES)}",
            ),
            (
                bool(ids) and list(ids) == sorted(set(ids)) and ids[0] >= 0 and ids[-1] < last,
                f"target_layer_ids is {list(ids)}: take increasing ids from 0 to {last - 1} (the last layer means the "
                "pre-norm residual in one layout and the post-norm one in the other)",
            ),
            (
                self.num_attention_heads % self.num_key_value_heads == 0,
                f"{self.num_attention_heads} query heads do not divide among {self.num_key_value_heads} KV heads",
            ),
        ]
