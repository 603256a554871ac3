"""What follows from the counts: totals, the break-even length, and how both move with what they depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_dspark.bench.step_model import model, prices, target_stages
from sglang_dspark.bench.step_model.case import Case
from sglang_dspark.bench.step_model.model import OURS, PLAIN, SGLANG, break_even, speedup, step
from sglang_dspark.bench.step_model.sizes import MINIMAX_M3, MINIMAX_M3_DRAFT

from .tiny import BYTES_ONLY, case

M3 = Case(MINIMAX_M3, MINIMAX_M3_DRAFT, ranks=8, batch=8, context=4096)
MI300X = prices.stated("MI300X")


def test_a_step_is_the_sum_of_its_stages():
    """At one us a launch and one a byte, a step takes as many us as it has launches and bytes."""
    found = step(case(), BYTES_ONLY, PLAIN)
    stages = target_stages.forward(case(), 1)
    assert found.launches == sum(stage.launches for stage in stages)
    assert found.moved_bytes == sum(stage.moved_bytes for stage in stages)
    assert found.us == pytest.approx(found.launches + found.moved_bytes)


def test_stages_of_one_name_stand_together():
    found = step(case(), BYTES_ONLY, OURS)
    names = [(priced.stage.part, priced.stage.name) for priced in found.stages]
    assert len(names) == len(set(names)) and ("target", "qkv projection") in names


def test_break_even_is_where_the_speed_is_the_same():
    plain, ours = (step(M3, MI300X, path) for path in (PLAIN, OURS))
    needed = break_even(plain, ours)
    assert needed == pytest.approx(ours.us / plain.us) and needed > 1
    assert speedup(plain, ours, needed) == pytest.approx(1.0)
    assert speedup(plain, ours, 2 * needed) == pytest.approx(2.0)


def test_a_round_costs_more_than_a_step_and_ours_no_more_than_sglang_s():
    for batch in (1, 16, 128):
        for pool in ("bf16", "fp8"):
            asked = replace(M3, batch=batch, draft_kv=pool)
            plain, sglang, ours = (step(asked, MI300X, path) for path in model.PATHS)
            assert plain.us < ours.us < sglang.us and plain.launches < ours.launches < sglang.launches


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_shrink_with_the_ranks(ranks):
    one, many = (step(replace(M3, ranks=count), MI300X, OURS).moved_bytes for count in (1, ranks))
    # What every rank holds whole keeps it above the even share.
    assert one / ranks < many < 1.15 * one / ranks


def test_bytes_of_the_context_grow_with_it_and_with_the_batch():
    """Full attention and the index read all of it; block-sparse attention stops at its blocks."""

    def attention(context: int, batch: int = 8) -> dict[str, float]:
        found = step(replace(M3, context=context, batch=batch), MI300X, PLAIN).stages
        return {priced.stage.name: priced.stage.moved_bytes for priced in found}

    short, long = attention(4096), attention(8192)
    assert long["full attention"] == 2 * short["full attention"] and long["block index"] == 2 * short["block index"]
    assert long["block-sparse attention"] == short["block-sparse attention"]
    assert attention(4096, 16)["full attention"] == 2 * short["full attention"]


def test_break_even_moves_one_way_with_the_launch_cost():
    """(a + n x) / (b + m x) has no turning point: it goes from the bytes' ratio to the launches'."""
    for batch in (1, 8, 64):
        asked = replace(M3, batch=batch)
        found = []
        for launch_us in (0.0, 1.0, 2.0, 5.0, 20.0, 1000.0):
            costs = prices.stated("MI300X", launch_us, collective_us=0.0)
            plain, ours = (step(asked, costs, path) for path in (PLAIN, OURS))
            found.append(break_even(plain, ours))
        steps = [after - before for before, after in zip(found, found[1:], strict=False)]
        assert all(one < 0 for one in steps) or all(one > 0 for one in steps)
        launches = [sum(priced.stage.launches for priced in one.stages) for one in (plain, ours)]
        assert found[-1] == pytest.approx(launches[1] / launches[0], rel=0.05)


def test_our_ops_save_more_the_more_a_launch_costs():
    saved = []
    for eager_us in (1.5, 5.0, 10.0):
        costs = prices.stated("MI300X", eager_launch_us=eager_us)
        sglang, ours = (step(replace(M3, draft_kv="fp8"), costs, path) for path in (SGLANG, OURS))
        saved.append(sglang.us - ours.us)
    assert saved == sorted(saved) and saved[-1] - saved[0] > 100


def test_experts_are_what_makes_verifying_dear():
    """Where tokens of a window choose the same experts, a round's length to win falls."""
    plain = step(M3, MI300X, PLAIN)
    lengths = [break_even(plain, step(replace(M3, expert_overlap=o), MI300X, OURS)) for o in (0.0, 0.5, 1.0)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 1.5 * lengths[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"ranks": 3}, "3 ranks do not divide 4 query heads"), ({"batch": 0}, "a batch of 0"),
     ({"context": 0}, "a context of 0"), ({"block_overlap": 2.0}, "a block overlap of 2"),
     ({"expert_overlap": -1.0}, "an expert overlap of -1")],
)  # fmt: skip
def test_no_question_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        case(**changes)
