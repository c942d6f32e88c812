import math

import torch

from lab.model.attention.attend import attend
from lab.positions import frequencies

FLOAT64_TOL = 1e-14  # of a softmax of three numbers of order one


def test_logits_are_plain_products_at_any_position_by_hand():
    # q.k / sqrt(2) of the third token: 0, ln 2 and ln 4, so that it weighs the values 1, 10 and 100 by 1, 2 and 4 of 7;
    # the second sees 0 and ln 2 as well, with q = (1, 0)
    root = math.sqrt(2)
    q = torch.tensor([[[[1.0, 0.0]] * 3]], dtype=torch.float64)
    k = torch.tensor([[[[0.0, 5.0], [root * math.log(2), 7.0], [root * math.log(4), -3.0]]]], dtype=torch.float64)
    v = torch.tensor([[[[1.0, 0.0], [10.0, 0.0], [100.0, 0.0]]]], dtype=torch.float64)
    drope = frequencies("drope", head_dim=2)
    for ids in (None, torch.tensor([0, 40, 9000])):
        out = attend(q, k, v, frequencies=drope, q_pos=ids, k_pos=ids)[0, 0, :, 0]
        expected = torch.tensor([1.0, 21 / 3, 421 / 7], dtype=torch.float64)
        torch.testing.assert_close(out, expected, rtol=FLOAT64_TOL, atol=0)
