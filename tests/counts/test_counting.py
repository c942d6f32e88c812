"""The callback that counts: packs with gaps and anchors, saved and taken up again."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.counts import COUNTED, PositionCounts
from lab.positions import distance
from lab.train.callbacks.counting import AT_ONCE, WAITING_TARGETS, Counting
from tests.ranks import meet

PACKS = [  # lengths, ids, anchors, targets by visible context
    ([2, 3], None, None, [2, 2]),
    ([4, 1], [0, 1, 5, 6, 3, 0], None, [2, 1, 1, 1]),
    ([1, 2, 2], [0, 1, 2, 3, 4, 0], (-1, 0, 0), [0, 2, 1]),
    ([1, 3, 1, 1], [0, 2, 3, 7, 0, 4], (-1, 0, -1, 4), [0, 1]),
]


def batch_of(number):
    lengths, ids, anchors, targets = PACKS[number]
    ids = None if ids is None else np.array(ids)
    return {"lengths": lengths, "counted": ids, "anchors": anchors, "supervised": np.array(targets), "number": number}


def count(counting, numbers, weights=None):
    """Let the callback see packs, and return those it told the data module of."""
    consumed = []
    data = SimpleNamespace(consumed=lambda batch: consumed.append(batch["number"]), weights=weights)
    trainer = SimpleNamespace(datamodule=data)
    counting.setup(trainer, None, "fit")
    for number in numbers:
        counting.on_train_batch_end(trainer, None, None, batch_of(number), number)
    return consumed


def expected(numbers):
    total = PositionCounts(8)
    for number in numbers:
        lengths, ids, anchors, targets = PACKS[number]
        total.add_runs(lengths, None if ids is None else np.array(ids), anchors)
        total.add_targets(np.array(targets))
    return total


@pytest.mark.parametrize(("n", "max_len"), [(AT_ONCE, 8), (3 * AT_ONCE + 5, 8), (5, WAITING_TARGETS // 2)])
def test_packs_wait_to_be_counted_many_at_a_time_and_none_is_left_out(n, max_len):
    counting = Counting(max_len, distance("plain"))
    numbers = np.random.default_rng(n).integers(0, 4, n).tolist()
    assert count(counting, numbers) == numbers
    assert len(counting.waiting) == n % (AT_ONCE if max_len == 8 else 2)
    total = counting.total()
    for name in COUNTED:
        found, here = getattr(total, name), getattr(expected(numbers), name)
        assert found[: len(here)].tolist() == here.tolist()
        assert not found[len(here) :].any()


def test_counting_goes_on_from_a_checkpoint(tmp_path):
    counting = Counting(8, distance("plain"))
    count(counting, [0, 1, 3])
    torch.save(counting.state_dict(), tmp_path / "state.ckpt")
    weights = np.array([0.5, 1, 2, 4, 1, 1, 1, 1])
    again = Counting(8, distance("plain"))
    count(again, [], weights)
    again.load_state_dict(torch.load(tmp_path / "state.ckpt", weights_only=True))
    assert again.total() == expected([0, 1, 3])
    count(again, [2, 3], weights)
    assert again.total() == expected([0, 1, 3, 2, 3])
    # 4, 7, 2 and 1 targets weigh 2, 7, 4 and 4
    assert again.total().supervised_f().tolist() == [17, 15, 8, 4, 0, 0, 0, 0]
    twice = Counting(8, distance("plain"))
    twice.load_state_dict(again.state_dict())
    assert twice.total() == again.total()
    assert twice.total().gapped.dtype == np.int64


def totals_of(numbers):
    """Count some packs as one of the ranks, after a checkpoint of one rank, and add all ranks up."""
    meet()
    counting = Counting(8, distance("plain"))
    counting.load_state_dict(expected([1]).to_dict())
    count(counting, numbers[int(os.environ["RANK"])])
    return counting.total().to_dict()


def test_ranks_add_up_to_what_one_counts(ranks):
    totals = ranks(2).run(totals_of, ([0, 2], [3, 3]))
    assert totals == [expected([1, 0, 2, 3, 3]).to_dict()] * 2
