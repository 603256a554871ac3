"""The rows on which the budgets are counted: MiniMax-M3's draft, every wave full, every row written.

Five layers, heads of 128, the first 64 dims rotated, cos and sin in float32. A row is one K or one V row of one head.
"""

from __future__ import annotations

import torch

from tests.parity.cases import Case, Problem, problem

FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


def rows_to_write(heads: int, tokens: int, pool_dtype: torch.dtype | None = None) -> tuple[Problem, int]:
    """A problem, and its number of rows."""
    scales = tuple(0.01 * (1 + i) for i in range(10)) if pool_dtype else ()
    case = Case("budget", "", tokens=tokens, layers=5, heads=heads, pool_dtype=pool_dtype, scales=scales)
    return problem(case), 2 * tokens * 5 * heads
