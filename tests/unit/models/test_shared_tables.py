"""A draft's copies of the target's tables are compared by a few rows, on a vocabulary that may be split over ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.models.shared_tables import SharedTable


def module(weight: torch.Tensor, start: int | None = None, end: int | None = None) -> SimpleNamespace:
    made = SimpleNamespace(weight=weight)
    if start is not None:
        made.shard_indices = SimpleNamespace(org_vocab_start_index=start, org_vocab_end_index=end)
    return made


@pytest.fixture
def table() -> torch.Tensor:
    return torch.randn(1000, 16, generator=torch.Generator().manual_seed(2))


def test_the_same_table(table: torch.Tensor) -> None:
    assert SharedTable("lm_head.weight", table).problem_with(module(table)) is None


def test_the_same_table_in_another_dtype(table: torch.Tensor) -> None:
    """A float32 checkpoint beside a bf16 target: rounding is no difference."""
    assert SharedTable("lm_head.weight", table).problem_with(module(table.bfloat16())) is None


def test_another_table(table: torch.Tensor) -> None:
    problem = SharedTable("lm_head.weight", table).problem_with(module(table.flip(0)))
    assert "lm_head.weight" in problem and "use the draft that belongs to this target" in problem


def test_a_fine_tuned_table(table: torch.Tensor) -> None:
    """Five per cent away is no rounding: such a head was trained."""
    trained = table + 0.05 * torch.randn(table.shape)
    assert SharedTable("lm_head.weight", table).problem_with(module(trained)) is not None


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_shard_of_the_vocabulary(table: torch.Tensor, rank: int) -> None:
    """Row r of a shard is token start + r: compared without the start, every rank but the first would refuse. Rows
    behind the shard's end are padding."""
    start = rank * 250
    shard = torch.cat([table[start : start + 250], torch.full((14, 16), 99.0)])
    copy = SharedTable("embed_tokens.weight", table)
    assert copy.problem_with(module(shard, start, start + 250)) is None
    assert copy.problem_with(module(shard.roll(1, 0), start, start + 250)) is not None


def test_a_shard_without_sampled_rows(table: torch.Tensor) -> None:
    """Nothing to compare is no difference, whatever the norm of no rows is."""
    assert SharedTable("lm_head.weight", table).problem_with(module(table[1:2], 1, 2)) is None


def test_the_last_row_is_among_the_sampled(table: torch.Tensor) -> None:
    """And a table smaller than the sample is compared whole."""
    assert SharedTable("x", table).ids[[0, -1]].tolist() == [0, 999]
    small = SharedTable("x", table[:5])
    assert small.ids.tolist() == [0, 1, 2, 3, 4]
    assert small.problem_with(module(table[:5])) is None


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 5000])
def test_the_sampled_rows_under_a_default_dtype_of_bf16(rows: int) -> None:
    """SGLang loads models under the serving dtype: row numbers computed in bf16 fall behind the table's end."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        ids = SharedTable("x", torch.zeros(rows, 1)).ids.tolist()
    finally:
        torch.set_default_dtype(before)
    assert ids == sorted(set(ids)) and len(ids) == min(rows, 64)
    assert (ids[0], ids[-1]) == (0, rows - 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_quantised_table_is_not_compared(table: torch.Tensor, dtype: torch.dtype) -> None:
    """Its numbers mean nothing without their scales."""
    assert SharedTable("lm_head.weight", table).problem_with(module(torch.zeros(1000, 16).to(dtype))) is None
    assert SharedTable("lm_head.weight", table).problem_with(SimpleNamespace()) is None


def test_the_rows_are_copies(table: torch.Tensor) -> None:
    """The loader frees the table; kept views would hold two gigabytes for nothing."""
    copy = SharedTable("lm_head.weight", table)
    assert copy.rows.data_ptr() != table.data_ptr() and copy.rows.numel() == 64 * 16
