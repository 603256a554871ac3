"""One question to the model: which models, on how many ranks, for how many requests of what length."""

from __future__ import annotations

from dataclasses import dataclass

from .sizes import DraftSizes, TargetSizes

# Of a bf16 weight or value; fp8 with one scale for 32 weights (MXFP8), and an fp8 value of a KV pool.
NUMBER_BYTES = {"bf16": 2.0, "fp8": 1.0}
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0 + 1 / 32}


@dataclass(frozen=True)
class Case:
    """The question.

    ``weights`` are the target's (attention, MLPs and experts; embedding, head and router stay bf16, as does the draft),
    ``kv`` the target's pool, ``draft_kv`` the draft's. ``block_overlap`` is how far the queries of one verify window
    choose the same key blocks: 1 all the same, 0 none; ``expert_overlap`` how far its tokens choose the same experts: 0
    as independently as tokens of different requests. ``shared_fused``: SGLang runs the shared expert among the routed
    ones (gfx950 and CUDA), and not as a product of its own (gfx942).
    """

    target: TargetSizes
    draft: DraftSizes
    ranks: int
    batch: int
    context: int
    weights: str = "bf16"
    kv: str = "bf16"
    draft_kv: str = "bf16"
    block_overlap: float = 1.0
    expert_overlap: float = 0.0
    shared_fused: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be split or is no question."""
        heads = self.target.query_heads
        problems = [
            (
                self.ranks < 1 or heads % max(self.ranks, 1) != 0,
                f"{self.ranks} ranks do not divide {heads} query heads",
            ),
            (self.batch < 1, f"a batch of {self.batch}: give 1 or more"),
            (self.context < 1, f"a context of {self.context} tokens: give 1 or more"),
            (not 0 <= self.block_overlap <= 1, f"a block overlap of {self.block_overlap}: give 0 to 1"),
            (not 0 <= self.expert_overlap <= 1, f"an expert overlap of {self.expert_overlap}: give 0 to 1"),
        ]
        if found := [text for holds, text in problems if holds]:
            raise ValueError("; ".join(found))

    @property
    def window(self) -> int:
        """Tokens that a round verifies for each request: the anchor and every proposal."""
        return self.draft.gamma + 1

    @property
    def query_heads(self) -> int:
        """Of one rank."""
        return self.target.query_heads // self.ranks

    @property
    def kv_heads(self) -> int:
        """Of one rank: more ranks than KV heads share copies of them."""
        return max(1, self.target.kv_heads // self.ranks)

    @property
    def index_heads(self) -> int:
        """Of one rank, copied in the same way."""
        return max(1, self.target.index_heads // self.ranks)
