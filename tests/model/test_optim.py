import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.data.batch import Batch, Inputs
from lab.model.config import DecoderConfig, OptimConfig
from lab.train.loop import compute_loss, finish_gradient, read_statistics
from tests.modules import training_of

SCHEDULE_TOL = 1e-12  # relative; one cosine and a handful of float64 products
FLOAT64_TOL = 1e-10  # gradients of order one after some thousand float64 operations
PAPER = OptimConfig(lr=4e-4, min_lr=4e-5, warmup_steps=2000)
CFG = DecoderConfig(8, 2, 2, 1, 12, 11, tie_embeddings=False)
CLIP = "lab.train.loop.CLIP_NORM"
COEFFICIENTS = {"lr": 0.5, "min_lr": 0.1, "warmup_steps": 4, "beta2": 0.9}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # warm-up: lr * (step + 1) / 2000
        pytest.param(0, 2e-7, id="first_step"),
        pytest.param(1999, 4e-4, id="end_of_the_warm_up"),
        # cosine over 8000 steps: 4e-5 + 3.6e-4 * (1 + cos(pi * share)) / 2
        # a quarter: cos 45 degrees = 0.70710678; 4e-5 + 3.6e-4 * 0.85355339 = 3.4727922061e-4
        pytest.param(4000, 4e-5 + 3.6e-4 * (1 + math.sqrt(0.5)) / 2, id="quarter"),
        # three quarters: cos 135 degrees = -0.70710678
        pytest.param(8000, 4e-5 + 3.6e-4 * (1 - math.sqrt(0.5)) / 2, id="three_quarters"),
        pytest.param(10_000, 4e-5, id="end"),
    ],
)
def test_learning_rate_by_hand(step, expected):
    assert PAPER.lr_at(step, 10_000) == pytest.approx(expected, rel=SCHEDULE_TOL)


@pytest.fixture(autouse=True)
def unclipped(monkeypatch):
    monkeypatch.setattr(CLIP, 1e9)


def training(total_steps=100, batch_tokens=16, micro_batch_tokens=8, double=True):
    return training_of(
        CFG,
        optim=OptimConfig(**COEFFICIENTS),
        steps=total_steps,
        batch_tokens=batch_tokens,
        micro_batch_tokens=micro_batch_tokens,
        double=double,
    )


def test_optimizer_follows_the_schedule_step_by_step():
    state = training(total_steps=6)
    optimizer, schedule = state.optimizer, state.schedule
    assert all(group["betas"] == (0.9, 0.9) for group in optimizer.param_groups)
    seen = []
    for _ in range(7):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    # warm-up 0.5 * n / 4; then 0.1 + 0.4 * (1 + cos) / 2 over two steps at cos 1, 0, -1
    assert seen == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.3, 0.1])


def batch_of(seed, lengths, targets_per_segment):
    """Make a pack of 8 tokens of which the first few of each segment are scored."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, CFG.vocab_size, (1, 8), generator=g)
    targets, start = torch.full((1, 8), -100), 0
    for length, scored in zip(lengths, targets_per_segment, strict=True):
        targets[0, start : start + scored] = torch.randint(0, CFG.vocab_size, (scored,), generator=g)
        start += length
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    inputs = Inputs(tokens=tokens, targets=targets, cu_seqlens=ends)
    values = dict.fromkeys(field.name for field in fields(Batch))
    runs = {"lengths": tuple(lengths), "starts": (0,) * len(lengths), "n_targets": sum(targets_per_segment)}
    return Batch(**values | {"inputs": inputs} | runs)


def run_step(state, batches):
    for batch in batches:
        (compute_loss(state, batch, stop=False) / len(batches)).backward()  # as the loop accumulates
    finish_gradient(state)
    return read_statistics(state)


def test_a_long_gradient_is_cut_to_the_norm_and_its_own_norm_is_recorded(monkeypatch):
    free, cut, batches = training(), training(), [batch_of(1, [8], [7])]
    own = run_step(free, batches)
    monkeypatch.setattr(CLIP, 0.01)
    stats = run_step(cut, batches)
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in cut.decoder.parameters()))
    assert norm == pytest.approx(0.01, rel=1e-3)  # torch divides by the norm plus 1e-6
    assert stats.grad_norm == pytest.approx(own.grad_norm, rel=FLOAT64_TOL)
    assert own.grad_norm > 0.01


class Kernels(TorchDispatchMode):
    """Count the kernels that a GPU starts to multiply lists of gradients, lists of one chunk in one kernel.

    Source: torch/aten/src/ATen/native/cuda/ForeachBinaryOpScalarTensor.cu and ForeachUtils.h, can_use_fast_route.
    """

    n = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function is torch.ops.aten._foreach_mul_.Tensor:
            tensors, factor = arguments
            fast = {(x.dtype, x.device) for x in tensors} == {(factor.dtype, factor.device)}
            self.n += 1 if fast else len(tensors)
        return function(*arguments, **(options or {}))


def test_all_gradients_are_scaled_in_one_kernel_as_in_float32():
    state, batches = training(double=False), [batch_of(1, [5, 2], [4, 1]), batch_of(2, [8], [7])]
    for batch in batches:
        compute_loss(state, batch, stop=False).backward()
    before = [p.grad.numpy().copy() for p in state.decoder.parameters()]
    with Kernels() as kernels:
        finish_gradient(state)
    assert kernels.n == 2, "the scale and the clipping, whatever the number of parameters"
    factor = np.float32(16 / 12)  # tokens of the batch over those that are scored, which is no power of two
    for parameter, gradient in zip(state.decoder.parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.grad.numpy(), gradient * factor)
