"""Weights that are no numbers: refused when a draft is loaded.

Neither NaN nor infinity changes an answer, since the target has the last word, but a draft that holds one proposes
nothing worth verifying, and no other message would ever say why: the server is then slower than without a draft.
"""

from __future__ import annotations

import torch


def problem_with(name: str, weight: torch.Tensor) -> str | None:
    """What is wrong with a tensor that holds NaN or infinity; None when every value is finite, or none is a float."""
    if not weight.is_floating_point():
        return None
    if weight.element_size() == 1:
        weight = weight.float()  # torch sums no fp8
    # One pass that keeps nothing: a single NaN or infinity makes the sum one of both. So may finite values that are
    # huge, and then every value is looked at.
    if torch.isfinite(weight.sum(dtype=torch.float32)):
        return None
    bad = ~torch.isfinite(weight)
    count = int(bad.sum())
    if not count:
        return None
    first = bad.nonzero()[0].tolist()
    return (
        f"tensor {name}: asked for finite numbers, found {count} of {weight.numel()} that are not, the first at "
        f"{first} ({float(weight[tuple(first)])}); the file is damaged or its training diverged: copy it again, or "
        "use another draft"
    )
