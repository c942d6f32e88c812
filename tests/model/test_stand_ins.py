"""The stand-ins themselves: against torch's own attention for CPUs, and what they refuse."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from tests.model import stand_ins

TOL = 1e-2  # inputs are exact in bfloat16; outputs and gradients are rounded to 8 bits
CU = torch.tensor([0, 5, 12], dtype=torch.int32)


@pytest.fixture(autouse=True)
def on_cpu():
    with stand_ins.on_cpu():
        yield


def drawn(n_q=12, n_k=12, width=16, dtype=torch.bfloat16, kv_heads=2):
    generator = torch.Generator().manual_seed(0)
    shapes = [(n_q, 4, width), (n_k, kv_heads, width), (n_k, kv_heads, width)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def by_torch(q, k, v, cu_q, cu_k):
    """Attend segment by segment under a mask aligned at the lower right corner."""
    outs = []
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        q_part, k_part, v_part = (x[m:n].transpose(0, 1).double() for x, m, n in ((q, a, b), (k, c, d), (v, c, d)))
        mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(int(d - c - b + a))
        outs.append(F.scaled_dot_product_attention(q_part, k_part, v_part, attn_mask=mask, enable_gqa=True))
    return torch.cat([out.transpose(0, 1) for out in outs])


def flash(q, k, v, cu_q, cu_k):
    return torch.ops.aten._flash_attention_forward(q, k, v, cu_q, cu_k, 12, 12, 0.0, True, False)[0]


def wide(*tensors):
    """Repeat key-value heads, which torch 2.11 cannot share."""
    return (x.repeat_interleave(2, dim=1) for x in tensors)


CALLS = {
    "flash_operator": flash,
    "varlen_attn": lambda q, k, v, *cu: varlen_attn(q, *wide(k, v), *cu, 12, 12, window_size=(-1, 0)),
    "varlen_attn_2_12": lambda *x: stand_ins.varlen_attn_2_12(*x, 12, 12, window_size=(-1, 0), enable_gqa=True),
    "flash_attn": lambda *x: stand_ins.flash_attn_varlen_func(*x, 12, 12, causal=True),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("n_q", [[5, 7], [2, 7], [1, 1]], ids=str)
def test_stand_ins_equal_torch_on_a_cpu(call, n_q):
    cu_q = torch.tensor([0, n_q[0], sum(n_q)], dtype=torch.int32)
    leaves = drawn(n_q=sum(n_q))
    out, expected = call(*leaves, cu_q, CU), by_torch(*leaves, cu_q, CU)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOL)
    grads = torch.autograd.grad(out.float().sum(), leaves)
    for x, y in zip(grads, torch.autograd.grad(expected.sum(), leaves), strict=True):
        torch.testing.assert_close(x, y, rtol=TOL, atol=TOL)


def test_the_log_sum_exp_is_natural_and_head_first():
    q, k, v = (x.detach() for x in drawn(kv_heads=4))
    expected = torch.stack([(q[:5, h].double() @ k[:5, h].double().T / 4).logsumexp(-1) for h in range(4)])
    cu = torch.tensor([0, 5], dtype=torch.int32)
    lse = torch.ops.aten._flash_attention_forward(q[:5], k[:5], v[:5], cu, cu, 5, 5, 0.0, False, False)[1]
    torch.testing.assert_close(lse.double(), expected, rtol=0, atol=1e-6)
    rows = (x[None, :5].float() for x in (q, k, v))
    lse = torch.ops.aten._efficient_attention_forward(*rows, None, None, None, None, None, 0.0, 0, True)[1]
    assert lse.shape == (1, 4, 32)
    torch.testing.assert_close(lse[0, :, :5].double(), expected, rtol=0, atol=1e-6)
    assert (lse[0, :, 5:] == torch.inf).all()
