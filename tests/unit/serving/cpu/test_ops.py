"""The four scheduling ops against plain Python over lists."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.serving.cpu import ops

# Request rows and their windows: ordinary, empty, inverted (an op never walks backwards), and a row used last.
ROWS, STARTS, ENDS = [2, 0, 3, 1], [1, 4, 5, 0], [4, 4, 3, 2]
TAKEN = 3 + 0 + 0 + 2


def table() -> torch.Tensor:
    return torch.arange(24, dtype=torch.int32).view(4, 6) + 100


def windows(dtype: torch.dtype = torch.int64) -> list[torch.Tensor]:
    return [torch.tensor(values, dtype=dtype) for values in (STARTS, ENDS)]


@pytest.fixture(autouse=True)
def registered() -> None:
    ops.register()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("through_torch", [True, False])
def test_assign_req_to_token_pool(dtype: torch.dtype, through_torch: bool) -> None:
    """An empty window that takes a slot all the same shifts every later request by one."""
    function = torch.ops.sgl_kernel.assign_req_to_token_pool_cpu if through_torch else ops.assign_req_to_token_pool_cpu
    slots = torch.arange(TAKEN, dtype=dtype) + 7
    written = table()
    function(torch.tensor(ROWS), written, *windows(dtype), slots, 6)
    expected, source = table().tolist(), iter(slots.tolist())
    for row, start, end in zip(ROWS, STARTS, ENDS, strict=True):
        for column in range(start, end):
            expected[row][column] = next(source)
    assert written.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("through_torch", [True, False])
def test_assign_extend_cache_locs(dtype: torch.dtype, through_torch: bool) -> None:
    """The slots of all windows one behind the other; what lies behind them stays."""
    function = torch.ops.sgl_kernel.assign_extend_cache_locs_cpu if through_torch else ops.assign_extend_cache_locs_cpu
    slots = torch.full((TAKEN + 2,), -1, dtype=dtype)
    function(torch.tensor(ROWS), table(), *windows(), slots, 6)
    entries = table().tolist()
    expected = [entries[r][c] for r, s, e in zip(ROWS, STARTS, ENDS, strict=True) for c in range(s, e)]
    assert slots.tolist() == [*expected, -1, -1]


def test_reading_back_is_the_inverse_of_entering() -> None:
    written, slots = table(), torch.tensor([31, 5, 17, 2, 40])
    ops.assign_req_to_token_pool_cpu(torch.tensor(ROWS), written, *windows(), slots, 6)
    read = torch.zeros_like(slots)
    ops.assign_extend_cache_locs_cpu(torch.tensor(ROWS), written, *windows(), read, 6)
    assert torch.equal(read, slots)


@pytest.mark.parametrize("through_torch", [True, False])
def test_assign_draft_cache_locs(through_torch: bool) -> None:
    """The columns right behind each sequence; off by one, a draft overwrites its request's last token."""
    name = "assign_draft_cache_locs_contiguous_cpu"
    function = getattr(torch.ops.sgl_kernel, name) if through_torch else getattr(ops, name)
    slots = torch.full((2, 2), -1, dtype=torch.int64)
    function(torch.tensor([3, 1]), table(), torch.tensor([2, 4]), slots, 6, 1, 2)
    entries = table().tolist()
    assert slots.tolist() == [entries[3][2:4], entries[1][4:6]]


@pytest.mark.parametrize("through_torch", [True, False])
def test_copy_reads_every_source_before_it_writes(through_torch: bool) -> None:
    """Accepted slots move down into each other's places: copied one by one, the second would copy the first's copy."""
    function = torch.ops.sgl_kernel.copy_all_layer_kv_cache_cpu if through_torch else ops.copy_all_layer_kv_cache_cpu
    buffers = [
        torch.arange(6 * 3, dtype=torch.float32).view(6, 3),
        torch.arange(6 * 2, dtype=torch.bfloat16).view(6, 2),
    ]
    before = [buffer.clone() for buffer in buffers]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers])
    targets, sources = [1, 2, 0, 5], [0, 1, 2, 5]
    function(pointers, strides, torch.tensor(targets), torch.tensor(sources))
    for buffer, old in zip(buffers, before, strict=True):
        expected = old.clone()
        for target, source in zip(targets, sources, strict=True):
            expected[target] = old[source]
        assert torch.equal(buffer, expected)
        assert torch.equal(buffer[3:5], old[3:5])


def test_copy_of_nothing() -> None:
    buffer = torch.ones(2, 2)
    nothing = torch.zeros(0, dtype=torch.int64)
    pointers = torch.tensor([buffer.data_ptr()], dtype=torch.uint64)
    ops.copy_all_layer_kv_cache_cpu(pointers, torch.tensor([8]), nothing, nothing)
    assert torch.equal(buffer, torch.ones(2, 2))


def test_a_second_registration_does_nothing() -> None:
    """torch raises when an op is defined twice, and SGLang may load plugins more than once in a process."""
    ops.register()
