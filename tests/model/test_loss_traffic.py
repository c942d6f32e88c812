"""Bytes that the loss moves on a GPU, counted by stand-ins, and the precision of the head's gradient."""

import weakref

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from lab.estimate.stand_ins import FusedCrossEntropy
from lab.model import loss
from lab.model.loss import chunk_terms, summed_cross_entropy

V, D, CHUNK, TOKENS = 1024, 64, 128, 1152
BFLOAT16_TOL = 1e-2  # logits, their gradients and the results are rounded to 8 bits
SUM_TOL = 1e-5  # of sums in float32; sums rounded to bfloat16 err by 2^-9


def n_bytes(*trees):
    tensors = {id(x): x for x in tree_leaves(trees) if isinstance(x, torch.Tensor)}
    return sum(x.numel() * x.itemsize for x in tensors.values())


class Traffic(TorchDispatchMode):
    """Sum the sizes of what operators read and write, views and queries apart; `halves` lists outputs in bfloat16."""

    def __init__(self):
        super().__init__()
        self.bytes, self.halves = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(out, torch.Tensor):
            self.bytes += n_bytes(args, kwargs) + n_bytes(out)
            self.halves += [out.shape] * (out.dtype == torch.bfloat16)
        return out

    def one_kernel(self, *args):
        """Compute a chunk's terms as the compiled function does, which reads its inputs and writes its outputs."""
        with _disable_current_modes():
            out = chunk_terms(*args)
        self.bytes += n_bytes(args) + n_bytes(out)
        return out


def case():
    g = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, D, generator=g).bfloat16().requires_grad_() for n in (TOKENS, V))
    return hidden, weight, torch.randint(0, V, (TOKENS,), generator=g)


def test_logits_are_written_and_read_in_half_precision_and_the_heads_gradient_is_never(stood_in, monkeypatch):
    # A token's logits are written, read for their terms, whose gradient is written, and read by two products: 5 times
    # 2 V. Its hidden state is read twice, its gradient written, and copied (read, over what was read, written): 6 times
    # 2 D. A chunk's products read the head twice, 2 times 2 V D, and read and write the float32 sum, 2 times 4 V D.
    # Once: a sum of zeros like the head, 6 V D, and room for the gradient of the hidden states, 4 D a token.
    per_token = 10 * V + 12 * D + 12 * V * D / CHUNK + 6 * V * D / TOKENS + 4 * D
    monkeypatch.setattr(loss, "multiply", torch.matmul)  # as on a GPU, whatever this processor does
    hidden, weight, targets = case()
    with Traffic() as traffic:
        monkeypatch.setattr(loss, "compiled_terms", lambda: traffic.one_kernel)
        summed_cross_entropy(hidden, weight, targets, CHUNK)
    assert traffic.bytes / TOKENS == pytest.approx(per_token, rel=0.005)
    assert torch.Size([V, D]) not in traffic.halves


class Held(Traffic):
    """Track the bytes of storages that operators allocate, and their `peak`."""

    def __init__(self, *inputs):
        super().__init__()
        self.known, self.now, self.peak = {x.untyped_storage()._cdata for x in inputs}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.hold(super().__torch_dispatch__(func, types, args, kwargs))

    def one_kernel(self, *args):
        return self.hold(super().one_kernel(*args))

    def hold(self, out):
        storages = [x.untyped_storage() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        for storage in storages:
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.release, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def release(self, storage, size):
        self.known.discard(storage)
        self.now -= size


def test_the_estimate_holds_what_the_loss_allocates(stood_in, monkeypatch):
    monkeypatch.setattr(loss, "multiply", torch.matmul)
    peaks = []
    for real in (True, False):
        hidden, weight, targets = case()
        with Held(hidden, weight, targets) as held:
            monkeypatch.setattr(loss, "compiled_terms", lambda held=held: held.one_kernel)
            scored = (hidden, weight, targets, CHUNK) if real else (hidden, weight, CHUNK)
            (summed_cross_entropy if real else FusedCrossEntropy.apply)(*scored).backward()
        peaks.append(held.peak)
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)


def test_loss_and_gradients_equal_torchs(stood_in):
    hidden, weight, targets = case()
    got = summed_cross_entropy(hidden, weight, targets, CHUNK)
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected = functional.cross_entropy(wide[0] @ wide[1].T, targets, reduction="sum")
    grads = zip(torch.autograd.grad(got, (hidden, weight)), torch.autograd.grad(expected, wide), strict=True)
    for x, y in [(got, expected), *grads]:
        assert float((x.detach().double() - y.detach()).norm() / y.detach().norm()) < BFLOAT16_TOL


def test_the_heads_gradient_is_added_up_in_float32(stood_in):
    g = torch.Generator().manual_seed(1)
    total = torch.randn(40, 30, generator=g)
    parts = [[torch.randn(n, m, generator=g).bfloat16() for n, m in ((40, 20), (20, 30))] for _ in range(8)]
    exact = total.double() + sum(a.double() @ b.double() for a, b in parts)
    for a, b in parts:
        loss.add_product(total, a, b)
    assert float((total - exact).norm() / exact.norm()) < SUM_TOL


def test_nothing_is_compiled_without_a_c_compiler(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert loss.compiled_terms.__wrapped__() is chunk_terms


@pytest.mark.slow
def test_the_compiled_terms_equal_the_uncompiled():
    g = torch.Generator().manual_seed(2)
    compiled = torch.compile(chunk_terms, fullgraph=True)
    for n in (64, 64, 23):
        logits, weights = torch.randn(n, 300, generator=g), torch.rand(n, generator=g)
        targets = torch.randint(0, 300, (n,), generator=g)
        for trains in (True, False):
            given = targets, weights, (weights > 0.2).float(), trains
            with torch.no_grad():
                got, expected = compiled(logits.clone(), *given), chunk_terms(logits.clone(), *given)
            torch.testing.assert_close(got, expected)
