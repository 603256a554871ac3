"""A small op that is right in everything, for tests that break one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec, QKNormRopeTables

BF16 = torch.bfloat16
SPEC = QKNormRopeSpec(
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rotary_dim=8,
    is_neox=True,
    eps=1e-6,
    qkv_dtype=BF16,
    pool_dtype=BF16,
)


@pytest.fixture
def spec():
    return SPEC


@pytest.fixture
def tables():
    pools = (torch.zeros(10, 2, 16, dtype=BF16) for _ in range(2))
    return QKNormRopeTables(torch.ones(16), torch.ones(16), torch.ones(6, 8), *pools)


@pytest.fixture
def broken_tables(tables):
    """Tables with one field replaced."""
    return lambda **fields: replace(tables, **fields)
