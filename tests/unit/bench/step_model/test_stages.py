"""The counting rules, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from sglang_dspark.bench.step_model import stages


def test_a_product():
    """Weights 8 x 4 x 2 bytes; activations 3 x (8 + 4) x 2 bytes; 2 x 3 x 8 x 4 operations."""
    found = stages.linear("p", "n", rows=3, width=8, out=4)
    assert (found.launches, found.moved_bytes, found.operations, found.narrow) == (1, 64 + 72, 192, False)


def test_a_product_in_fp8_reads_half_the_weights_and_quantises_its_input_first():
    found = stages.linear("p", "n", rows=3, width=8, out=4, weight_bytes=1.0)
    assert (found.launches, found.moved_bytes, found.narrow) == (2, 32 + 72, True)


def test_a_norm_moves_four_times():
    assert stages.norm("p", "n", 3, 8).moved_bytes == 4 * 3 * 8 * 2


@pytest.mark.parametrize(("ranks", "sent", "collectives"), [(1, 0, 0), (2, 48, 1), (4, 72, 1)])
def test_a_ring_sends_twice_all_but_its_own_part(ranks, sent, collectives):
    """3 x 8 bf16 values are 48 bytes: 2 (n - 1) / n of them."""
    found = stages.all_reduce("p", 3, 8, ranks)
    assert (found.wire_bytes, found.collectives, found.launches) == (sent, collectives, 0)


def test_a_gather_receives_all_but_its_own_part():
    assert stages.gather("p", "n", values=100, ranks=4).wire_bytes == 150
    assert stages.gather("p", "n", values=100, ranks=1).collectives == 0


def test_experts_that_tokens_reach():
    """One token reaches its own; two of 4 experts with 2 each: 4 (1 - (1/2)^2) = 3; many reach all."""
    assert stages.distinct_experts(128, 4, 1) == pytest.approx(4)
    assert stages.distinct_experts(4, 2, 2) == 3
    assert stages.distinct_experts(128, 4, 10_000) == pytest.approx(128)


def test_so_many_times():
    found = stages.Stage("p", "n", 2, 10.0, 20.0, wire_bytes=3.0, collectives=1, op="x", op_rows=7, op_calls=1).times(5)
    assert (found.launches, found.moved_bytes, found.operations, found.wire_bytes, found.collectives) == (
        10, 50.0, 100.0, 15.0, 5,
    )  # fmt: skip
    assert (found.op_rows, found.op_calls) == (7, 5)
