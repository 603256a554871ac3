"""Which optimizer moves which weights.

AdamW is the rule. Muon (Jordan et al., 2024; torch.optim.Muon) for the matrices between tables, with AdamW for the
rest, gets further in few steps; its updates are scaled like AdamW's, so both take the same learning rates.

The loop multiplies its rate by the `lr` that a group is made with: 1.0 here, or a share of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

OPTIMIZERS = ("adamw", "muon")
_BETAS = (0.9, 0.95)
# Beside Muon, tables and norms learn at this share of the matrices' rate.
_TABLE_SHARE = 0.5


def make_optimizers(
    module: nn.Module, kind: str, weight_decay: float, tables: Iterable[str] = ()
) -> Sequence[torch.optim.Optimizer]:
    """Optimizers over the module's trainable weights.

    Args:
        module: what learns.
        kind: one of `OPTIMIZERS`.
        weight_decay: of matrices; norms and biases have none, nor do tables beside Muon.
        tables: parts of the names of two-dimensional weights that are look-ups by token, not maps.

    Raises:
        ValueError: another kind.
    """
    trained = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    if kind == "adamw":
        groups = [
            {"params": [weight for _, weight in trained if weight.dim() == 2], "weight_decay": weight_decay},
            {"params": [weight for _, weight in trained if weight.dim() != 2], "weight_decay": 0.0},
        ]
        return (torch.optim.AdamW(groups, lr=1.0, betas=_BETAS),)
    if kind != "muon":
        raise ValueError(f"asked for the optimizer {kind!r}: take one of {', '.join(OPTIMIZERS)}")
    names = tuple(tables)
    matrices = [w for name, w in trained if w.dim() == 2 and not any(part in name for part in names)]
    known = {id(weight) for weight in matrices}
    others = [weight for _, weight in trained if id(weight) not in known]
    return (
        torch.optim.Muon(matrices, lr=1.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=_TABLE_SHARE, betas=_BETAS, weight_decay=0.0),
    )
