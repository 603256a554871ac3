"""The draft's copies of the target's embedding and LM head, held against the originals.

AutoModel freezes both while it trains, and the server uses the target's own. A draft whose copies differ was trained
for another target, or with tables of its own, and would accept next to nothing.
"""

from __future__ import annotations

import torch

from sglang_dspark.checkpoints.headers import StoredTensor

# Evenly spaced, the first and the last among them.
SAMPLED_ROWS = 64
# Of the difference's norm to the rows' norm, where one was rounded to a narrower dtype.
TOLERANCE = 0.02

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def sampled_rows(num_rows: int) -> list[int]:
    """The rows of a table of `num_rows` that are compared."""
    count = min(SAMPLED_ROWS, num_rows)
    return [i * (num_rows - 1) // max(count - 1, 1) for i in range(count)]


def difference(copy: StoredTensor, original: StoredTensor) -> str | None:
    """What tells a draft's copy from the target's table, by sampled rows; None when nothing does.

    In one dtype the bytes must be equal; across dtypes the values, up to rounding.
    """
    if copy.shape != original.shape:
        return f"shape {list(copy.shape)}, the target's {list(original.shape)}"
    if not copy.shape:
        return "shape [], a single number"
    ours, theirs = _rows(copy), _rows(original)
    if copy.dtype == original.dtype:
        differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
        return f"{differing} of {len(ours)} sampled rows are not the target's" if differing else None
    if copy.dtype not in _DTYPES or original.dtype not in _DTYPES:
        return f"dtype {copy.dtype}, the target's {original.dtype}, which cannot be compared"
    if not copy.size_bytes:
        return None
    a, b = _values(ours, copy.dtype), _values(theirs, original.dtype)
    distance = float((a - b).norm() / b.norm().clamp(min=1e-12))
    # A copy that holds NaN is no copy.
    return None if distance <= TOLERANCE else f"sampled rows that differ from the target's by {distance:.0%}"


def _rows(table: StoredTensor) -> list[bytes]:
    row_bytes = table.size_bytes // max(table.shape[0], 1)
    rows = []
    with table.file.open("rb") as file:
        for row in sampled_rows(table.shape[0]):
            file.seek(table.start + row * row_bytes)
            rows.append(file.read(row_bytes))
    return rows


def _values(rows: list[bytes], dtype: str) -> torch.Tensor:  # [rows * hidden] fp32
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=_DTYPES[dtype]).float()
