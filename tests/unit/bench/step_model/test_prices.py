"""What stages cost, and what measured rows change about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_dspark.bench.step_model import prices
from sglang_dspark.bench.step_model.stages import Stage

from ..made_up import timed_rows

SHAPE = {"kv_heads": 1, "query_heads": 8, "layers": 5}
PRICES = prices.Prices("x", "gfx942", 1e9, 1e12, 2e12, 1e8, 1.5, 10.0, 12.0, {})


def test_a_stage_is_launches_and_the_slower_of_moving_and_computing():
    """1000 bytes at 1 GB/s take 1 us; 4e6 operations at 1 Tflop/s 4 us, half of that in fp8."""
    stage = Stage("p", "n", launches=2, moved_bytes=1000.0, operations=4e6)
    assert PRICES.time_us(stage, "ours") == pytest.approx(2 * 1.5 + 4)
    assert PRICES.time_us(replace(stage, narrow=True), "ours") == pytest.approx(2 * 1.5 + 2)
    assert PRICES.time_us(replace(stage, operations=0.0), "ours") == pytest.approx(2 * 1.5 + 1)
    assert PRICES.time_us(replace(stage, eager=True), "ours") == pytest.approx(2 * 10 + 4)


def test_collectives_are_paid_by_number_and_by_bytes():
    stage = Stage("p", "n", wire_bytes=200.0, collectives=3)
    assert PRICES.time_us(stage, "ours") == pytest.approx(3 * 12 + 2)


def test_a_measured_op_replaces_its_price_between_measured_rows_only():
    measured = replace(PRICES, op_us={("context_kv", "ours"): ((1, 2.0), (9, 6.0))})
    stage = Stage("p", "n", launches=1, moved_bytes=1e6, op="context_kv", op_rows=5, op_calls=3)
    assert measured.time_us(stage, "ours") == pytest.approx(3 * 4.0) and measured.is_measured(stage, "ours")
    assert measured.time_us(stage, "sglang") == PRICES.time_us(stage, "sglang")
    assert not measured.is_measured(replace(stage, op_rows=10), "ours")


@pytest.mark.parametrize("device", sorted(prices.RATES))
def test_every_listed_chip_has_prices_with_their_sources(device):
    found = prices.stated(device)
    assert found.bytes_per_s > 2e12 and found.operations_per_s > 4e14
    assert set(found.sources) == {"memory", "operations", "links", "launch", "collective"}


def test_an_unknown_chip_is_refused_by_name():
    with pytest.raises(ValueError, match="prices of 'MI100'; known are MI300X, MI325X"):
        prices.stated("MI100")


def test_rows_calibrate():
    """The large copy gives the bandwidth, the smallest in a graph the launch, without the time stamps' own time."""
    found = prices.calibrated(prices.stated("MI300X"), timed_rows(), SHAPE, "bf16")
    assert found.bytes_per_s == 4200e9 and "measured copy, 4200 GB/s" in found.sources["memory"]
    smallest = next(row for row in timed_rows() if row.subject == "device_copy" and row.case.get("tokens") == 1)
    assert found.launch_us == pytest.approx(smallest.figures["p50_us"] - 2.0)
    stage = Stage("p", "n", op="context_kv", op_rows=48, op_calls=1)
    hip = next(row for row in timed_rows() if row.subject == "hip" and row.case["tokens"] == 48)
    # The quickest of ours; SGLang's under its own name.
    assert found.time_us(stage, "ours") == pytest.approx(hip.figures["p50_us"] - 2.0)
    assert found.time_us(stage, "sglang") > found.time_us(stage, "ours")


def test_rows_of_other_heads_or_pools_or_chips_do_not_calibrate_the_op():
    stage = Stage("p", "n", op="context_kv", op_rows=48, op_calls=1)
    fp8 = prices.calibrated(prices.stated("MI300X"), timed_rows(), SHAPE, "fp8")
    assert not fp8.is_measured(stage, "ours")
    two = prices.calibrated(prices.stated("MI300X"), timed_rows(), {**SHAPE, "kv_heads": 2}, "bf16")
    assert not two.is_measured(stage, "ours")
    with pytest.raises(ValueError, match="expected measured rows of the H200, found none"):
        prices.calibrated(prices.stated("H200"), timed_rows(), SHAPE, "bf16")


@pytest.mark.parametrize("fact", [{"query_heads": 16}, {"layers": 3}])
def test_a_row_s_shape_must_be_the_question_s_where_it_names_it(fact):
    rows = [replace(row, case={**row.case, **fact}) if row.benchmark == "context_kv" else row for row in timed_rows()]
    found = prices.calibrated(prices.stated("MI300X"), rows, SHAPE, "bf16")
    assert not found.op_us
    assert prices.calibrated(prices.stated("MI300X"), rows, {**SHAPE, **fact}, "bf16").op_us


def test_the_unfused_path_is_sglang_s_where_its_fused_kernel_does_not_apply():
    """As with fp8 pools, whose rows have no subject "sglang"."""
    unfused = [replace(row, subject="unfused") if row.subject == "sglang" else row for row in timed_rows()]
    fp8 = [
        replace(row, case={**row.case, "pool_dtype": "e4m3fnuz"}) if "pool_dtype" in row.case else row
        for row in unfused
    ]
    found = prices.calibrated(prices.stated("MI300X"), fp8, SHAPE, "fp8")
    fused = prices.calibrated(prices.stated("MI300X"), timed_rows(), SHAPE, "bf16")
    assert found.op_us["context_kv", "sglang"] == fused.op_us["context_kv", "sglang"]
    both = prices.calibrated(prices.stated("MI300X"), [*timed_rows(), *unfused], SHAPE, "bf16")
    assert both.op_us["context_kv", "sglang"] == fused.op_us["context_kv", "sglang"]
