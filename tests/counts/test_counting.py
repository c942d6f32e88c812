"""The callback that counts: packs with gaps and anchors, saved and taken up again."""

from types import SimpleNamespace

import numpy as np
import torch

from lab.callbacks.counting import Counting
from lab.counts import PositionCounts
from lab.positions import distance

PACKS = [
    ([2, 3], None, None),
    ([4, 1], [0, 1, 5, 6, 3, 0], None),
    ([1, 2, 2], [0, 1, 2, 3, 4, 0], (-1, 0, 0)),
    ([1, 3, 1, 1], [0, 2, 3, 7, 0, 4], (-1, 0, -1, 4)),
]


def batch_of(number):
    lengths, ids, anchors = PACKS[number]
    return {"lengths": lengths, "counted": None if ids is None else np.array(ids), "anchors": anchors, "number": number}


def count(counting, numbers):
    """Let the callback see packs, and return those it told the data module of."""
    consumed = []
    trainer = SimpleNamespace(datamodule=SimpleNamespace(consumed=lambda batch: consumed.append(batch["number"])))
    for number in numbers:
        counting.on_train_batch_end(trainer, None, None, batch_of(number), number)
    return consumed


def expected(numbers):
    total = PositionCounts(8)
    for number in numbers:
        lengths, ids, anchors = PACKS[number]
        total.add_runs(lengths, None if ids is None else np.array(ids), anchors)
    return total


def test_total_holds_gaps_and_anchors():
    counting = Counting(8, distance("plain"))
    assert count(counting, range(4)) == [0, 1, 2, 3]
    assert counting.total() == counting.total() == expected(range(4))
    # 5 + 5 + 5 + 6 tokens; the anchors are seen at 1 2 3 4, at 2 3 7 and at 4
    assert counting.total().tokens == 21
    assert counting.total().gapped.any()


def test_counting_goes_on_from_a_checkpoint(tmp_path):
    counting = Counting(8, distance("plain"))
    count(counting, [0, 1, 3])
    torch.save(counting.state_dict(), tmp_path / "state.ckpt")
    again = Counting(8, distance("plain"))
    again.load_state_dict(torch.load(tmp_path / "state.ckpt", weights_only=True))
    assert again.total() == expected([0, 1, 3])
    count(again, [2, 3])
    assert again.total() == expected([0, 1, 3, 2, 3])
    twice = Counting(8, distance("plain"))
    twice.load_state_dict(again.state_dict())
    assert twice.total() == again.total()
    assert twice.total().gapped.dtype == np.int64
