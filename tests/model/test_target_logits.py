"""The logits of targets alone are those of the whole head."""

import pytest
import torch

from lab.model.attention import inspection
from lab.model.attention.inspection import target_logits
from lab.positions import distance
from tests.model.attention_by_hand import TINY, drawn, tiny

TOL = 1e-11  # some dozens of float64 terms of order ten, added in another order


@pytest.mark.parametrize("rows", [1, 7, 10_000], ids="head_rows_{}".format)
@pytest.mark.parametrize("method", ["plain", "string"])
def test_the_logit_of_each_target(rows, method, monkeypatch):
    monkeypatch.setattr(inspection, "BLOCK_LOGITS", rows * TINY.d_model)
    decoder = tiny(method=distance(method, **({"shift": 9, "window": 3} if method == "string" else {})))
    tokens, targets = drawn(23, rows=2), drawn(23, rows=3)[1:]
    targets[:, ::5] = -100
    with torch.no_grad():
        logits = decoder(tokens)
    expected = [
        [float(logits[row, place, target]) if target >= 0 else 0.0 for place, target in enumerate(line)]
        for row, line in enumerate(targets.tolist())
    ]
    found = target_logits(decoder, tokens, targets)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=TOL)
    assert not found.requires_grad
