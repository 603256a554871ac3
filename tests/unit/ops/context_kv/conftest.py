"""A small writer that is right in everything, for tests that break one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables

SPEC = ContextKVSpec(
    num_layers=2,
    num_kv_heads=2,
    head_dim=16,
    rotary_dim=8,
    is_neox=True,
    eps=1e-6,
    kv_dtype=torch.bfloat16,
    pool_dtype=torch.bfloat16,
)


@pytest.fixture
def spec():
    return SPEC


@pytest.fixture
def tables():
    def pools():
        return tuple(torch.zeros(10, 2, 16, dtype=torch.bfloat16) for _ in range(2))

    return ContextKVTables(pools(), pools(), torch.ones(2, 16), torch.ones(6, 8))


@pytest.fixture
def broken_tables(tables):
    """Tables with one field replaced."""
    return lambda **fields: replace(tables, **fields)
