"""Where blocks start, and which rows count, against plain loops."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.reference.anchors import cut_blocks, sample_anchors


def masks() -> torch.Tensor:
    torch.manual_seed(0)
    mask = (torch.rand(6, 23) > 0.35).float()
    mask[0], mask[1] = 1, 0
    mask[2, 12:] = 0
    return mask


def test_every_supervised_pair_can_be_an_anchor_and_nothing_else() -> None:
    mask = masks()
    anchors, keep = sample_anchors(mask, 40)
    for row in range(mask.shape[0]):
        wanted = [i for i in range(22) if mask[row, i] and mask[row, i + 1]]
        assert anchors[row, keep[row]].tolist() == wanted
        assert not anchors[row, ~keep[row]].any()


def test_a_few_anchors_are_a_random_ascending_choice() -> None:
    mask = masks()
    draws = set()
    for seed in range(30):
        torch.manual_seed(seed)
        anchors, keep = sample_anchors(mask, 3)
        assert keep[0].all() and not keep[1].any()
        assert (anchors[0].diff() > 0).all()
        draws |= set(anchors[0].tolist())
    assert draws == set(range(22))


@pytest.mark.parametrize("block_size", [1, 5])
def test_rows_count_until_the_first_gap(block_size) -> None:
    """Also not past the end of the sequence, where positions are clamped and would repeat the last token."""
    mask = masks()
    blocks = cut_blocks(mask, 40, block_size)
    for row in range(mask.shape[0]):
        for block in range(40):
            counted = 0
            while blocks.keep[row, block] and counted < block_size:
                position = int(blocks.anchors[row, block]) + counted + 1
                if position >= 23 or not mask[row, position]:
                    break
                assert blocks.label_positions[row, block, counted] == position
                counted += 1
            wanted = [step < counted for step in range(block_size)]
            assert blocks.supervised[row, block].tolist() == wanted
            assert not blocks.keep[row, block] or wanted[0]


def test_rows_stand_at_their_true_positions() -> None:
    blocks = cut_blocks(torch.ones(1, 9), 2, 3)
    first, second = blocks.anchors[0].tolist()
    assert blocks.row_positions[0].tolist() == [first, first + 1, first + 2, second, second + 1, second + 2]


@pytest.mark.parametrize("length", [0, 1])
def test_too_short_for_an_anchor(length) -> None:
    anchors, keep = sample_anchors(torch.ones(2, length), 4)
    assert anchors.shape == keep.shape == (2, 4) and not keep.any() and not anchors.any()
