"""The embedding and LM head that a draft shares with its target.

AutoModel's layout carries frozen copies of both. The server uses the target's, so a draft whose copies were trained
would be served with the wrong tables and accept next to nothing. A few rows of each copy are kept while loading and
compared with the target's.
"""

from __future__ import annotations

import logging

import torch

from sglang_dspark.checkpoints.tables import TOLERANCE, sampled_rows

logger = logging.getLogger(__name__)


class SharedTable:
    """Evenly spaced rows of one table of the draft's checkpoint."""

    def __init__(self, name: str, table: torch.Tensor) -> None:  # [vocab, hidden]
        """Keep the rows, on the CPU."""
        self.name = name
        self.ids = torch.tensor(sampled_rows(table.shape[0]), dtype=torch.int64)
        self.rows = table[self.ids].to("cpu", torch.float32)

    def problem_with(self, module: torch.nn.Module) -> str | None:
        """What tells the target's table apart from the draft's copy; None when nothing does.

        Args:
            module: the target's embedding or LM head, whole or this rank's shard of the vocabulary.
        """
        weight = getattr(module, "weight", None)
        if weight is None or not weight.is_floating_point() or weight.element_size() < 2:
            logger.info("sglang-dspark: the target's %s is quantised; the draft's copy is not compared", self.name)
            return None
        shard = getattr(module, "shard_indices", None)
        start = 0 if shard is None else shard.org_vocab_start_index
        end = weight.shape[0] if shard is None else shard.org_vocab_end_index
        here = (self.ids >= start) & (self.ids < end)
        if not here.any():
            return None
        theirs = weight[(self.ids[here] - start).to(weight.device)].to("cpu", torch.float32)
        distance = float((theirs - self.rows[here]).norm() / self.rows[here].norm().clamp(min=1e-12))
        if distance <= TOLERANCE:
            return None
        return (
            f"tensor {self.name}: asked for a copy of the target's (AutoModel freezes it), found one that differs by "
            f"{distance:.0%}; use the draft that belongs to this target, trained with frozen embeddings and head"
        )
