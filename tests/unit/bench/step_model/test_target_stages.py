"""The target's pass, counted by hand for the tiny target at batch 2, context 10."""

from __future__ import annotations

import pytest

from sglang_dspark.bench.step_model import target_stages
from sglang_dspark.bench.step_model.sizes import MINIMAX_M3, MINIMAX_M3_DRAFT

from .tiny import case, named


def test_decoding_by_hand():
    found = named(target_stages.forward(case(), 1))
    # Two norms a layer and the last one, of [2, 16], four passes of 2 bytes.
    assert found["norms"] == (7, 7 * 2 * 16 * 4 * 2, 0)
    # Full layer: (4 + 2 * 2) heads of 8 = 64 columns; sparse ones 3 index rows of 8 more = 88.
    full, sparse = 16 * 64 * 2 + 2 * (16 + 64) * 2, 16 * 88 * 2 + 2 * (16 + 88) * 2
    assert found["qkv projection"] == (3, full + 2 * sparse, 2 * 2 * 16 * (64 + 2 * 88))
    assert found["output projection"] == (3, 3 * (32 * 16 * 2 + 2 * (32 + 16) * 2), 3 * 2 * 2 * 32 * 16)
    # K and V of 2 requests, 10 tokens, 2 heads of 8, 2 bytes; 4 heads score and mix.
    assert found["full attention"] == (2, 2 * 10 * 2 * 2 * 8 * 2, 4 * 2 * 10 * 4 * 8)
    assert found["block index"] == (4, 2 * (2 * 10 * 8 * 2), 2 * (2 * 2 * 10 * 2 * 8))
    # 2 blocks of 4 tokens are chosen of 10.
    assert found["block-sparse attention"] == (4, 2 * (2 * 8 * 2 * 2 * 8 * 2), 2 * (4 * 2 * 8 * 4 * 8))
    # 2 tokens reach 3 of 4 experts; each holds 3 products of 16 x 8. Four pairs move 2 x 16 in and out, 5 x 8 between.
    routed = 3 * 3 * 16 * 8 * 2 + 4 * (2 * 16 + 5 * 8) * 2
    summed = (4 + 2) * 16 * 2
    assert found["routed experts"] == (2 * 4, 2 * (routed + summed), 2 * (6 * 4 * 16 * 8))
    assert found["LM head"] == (1, 16 * 64 * 2 + 2 * (16 + 64) * 2, 2 * 2 * 16 * 64)
    assert "all-reduce" not in found and "logits gather" not in found


def test_verifying_reads_the_weights_and_the_context_once_more_not_once_a_token():
    plain, verify = (named(target_stages.forward(case(), window)) for window in (1, 4))
    for name in ("full attention", "block index", "block-sparse attention"):
        assert verify[name][1] == plain[name][1] and verify[name][2] == 4 * plain[name][2]
    assert plain["output projection"][1] < verify["output projection"][1] < 4 * plain["output projection"][1]
    # Launches do not depend on how many tokens there are.
    assert {name: found[0] for name, found in plain.items()} == {name: found[0] for name, found in verify.items()}


def test_queries_that_choose_their_own_blocks_read_more_of_the_context():
    alike, apart = (
        named(target_stages.forward(case(context=100, block_overlap=overlap), 4))["block-sparse attention"][1]
        for overlap in (1.0, 0.0)
    )
    assert apart == 4 * alike
    # Never more than there is.
    short = named(target_stages.forward(case(context=10, block_overlap=0.0), 4))["block-sparse attention"][1]
    assert short == 2 * (2 * 10 * 2 * 2 * 8 * 2)


def test_tokens_that_choose_alike_reach_fewer_experts():
    apart, alike = (
        named(target_stages.forward(case(batch=1, expert_overlap=overlap), 4))["routed experts"]
        for overlap in (0.0, 1.0)
    )
    assert alike[1] < apart[1] and alike[2] == apart[2]


def test_a_fused_shared_expert_costs_no_launch_and_no_fewer_bytes():
    apart, fused = (target_stages.forward(case(shared_fused=value), 1) for value in (False, True))
    assert sum(stage.launches for stage in apart) - sum(stage.launches for stage in fused) == 2 * 4
    assert sum(stage.moved_bytes for stage in apart) == sum(stage.moved_bytes for stage in fused)
    assert sum(stage.operations for stage in apart) == sum(stage.operations for stage in fused)


@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_and_operations_are_split_over_the_ranks(ranks):
    """All but what every rank holds whole: the router, the index's one key, norms, activations."""
    large = {"target": MINIMAX_M3, "draft": MINIMAX_M3_DRAFT, "batch": 1}
    one, many = (named(target_stages.forward(case(**large, ranks=count), 1)) for count in (1, ranks))
    for name in ("output projection", "dense MLP", "routed experts", "shared expert", "LM head"):
        assert many[name][1] == pytest.approx(one[name][1] / ranks, rel=0.02), name
        assert many[name][2] == pytest.approx(one[name][2] / ranks), name
    assert many["full attention"][1] == one["full attention"][1] / ranks
    assert many["router"] == one["router"]


def test_more_ranks_than_kv_heads_copy_them():
    large = {"target": MINIMAX_M3, "draft": MINIMAX_M3_DRAFT}
    four, eight = (named(target_stages.forward(case(**large, ranks=count), 1)) for count in (4, 8))
    assert four["full attention"][1] == eight["full attention"][1]


def test_collectives_of_a_split_target():
    """After attention and after the MLP of each layer, after the embedding, and the logits."""
    found = target_stages.forward(case(ranks=2), 1)
    assert sum(stage.collectives for stage in found) == 2 * 3 + 1 + 1


def test_the_weights_of_a_step_are_the_published_count():
    """MiniMax-M3 activates about 23e9 parameters of 428e9 for a token: one rank's bytes, bf16, one token."""
    assert MINIMAX_M3.parameters() == pytest.approx(428e9, rel=0.01)
    large = case(target=MINIMAX_M3, draft=MINIMAX_M3_DRAFT, batch=1, context=1)
    head = MINIMAX_M3.vocabulary * MINIMAX_M3.hidden
    moved = sum(stage.moved_bytes for stage in target_stages.forward(large, 1)) / 2 - head
    assert moved == pytest.approx(23e9, rel=0.03)
