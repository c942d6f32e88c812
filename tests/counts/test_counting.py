"""Counting of packs with gaps and anchors over ranks, saved and taken up again."""

import os

import numpy as np
import torch

from lab.counts import PositionCounts
from lab.positions import distance
from lab.train.recording import Counting
from tests.ranks import meet

PACKS = [  # lengths, ids, anchors, targets by visible context
    ([2, 3], None, None, [2, 2]),
    ([4, 1], [0, 1, 5, 6, 3, 0], None, [2, 1, 1, 1]),
    ([1, 2, 2], [0, 1, 2, 3, 4, 0], (-1, 0, 0), [0, 2, 1]),
    ([1, 3, 1, 1], [0, 2, 3, 7, 0, 4], (-1, 0, -1, 4), [0, 1]),
]


def asked(number):
    """Count some targets by evidence distance, and what they weigh."""
    return {"evidence": np.array([0, number, 3]), "demand": np.array([0, number // 2, 2])}


def batch_of(number):
    lengths, ids, anchors, targets = PACKS[number]
    ids = None if ids is None else np.array(ids)
    return {"lengths": lengths, "counted": ids, "anchors": anchors, "supervised": np.array(targets), **asked(number)}


def count(numbers, weights=None, before=None):
    """Count packs, after those of a state if one is given."""
    counting = Counting(8, distance("plain"))
    counting.before.weights = counting.here.weights = weights
    if before is not None:
        counting.load_state_dict(before)
    for number in numbers:
        counting.add(batch_of(number))
    return counting


def expected(numbers):
    total = PositionCounts(8)
    for number in numbers:
        lengths, ids, anchors, targets = PACKS[number]
        total.add_runs(lengths, None if ids is None else np.array(ids), anchors)
        total.add_targets(np.array(targets))
        total.add_evidence(**asked(number))
    return total


def test_counting_goes_on_from_a_checkpoint(tmp_path):
    torch.save(count([0, 1, 3]).total().to_dict(), tmp_path / "state.ckpt")
    saved = torch.load(tmp_path / "state.ckpt", weights_only=True)
    weights = np.array([0.5, 1, 2, 4, 1, 1, 1, 1])
    assert count([], weights, saved).total() == expected([0, 1, 3])
    again = count([2, 3], weights, saved)
    assert again.total() == expected([0, 1, 3, 2, 3])
    # 4, 7, 2 and 1 targets weigh 2, 7, 4 and 4
    assert again.total().supervised_f().tolist() == [17, 15, 8, 4, 0, 0, 0, 0]
    assert count([], before=again.total().to_dict()).total() == again.total()


def totals_of(numbers):
    """Count some packs as one of the ranks, after a checkpoint of one rank, and add all ranks up."""
    meet()
    return count(numbers[int(os.environ["RANK"])], before=expected([1]).to_dict()).total().to_dict()


def test_ranks_add_up_to_what_one_counts(ranks):
    totals = ranks(2).run(totals_of, ([0, 2], [3, 3]))
    assert totals == [expected([1, 0, 2, 3, 3]).to_dict()] * 2
