"""The learning rate, and the gradient of a step: the mean over the targets with a loss, however a batch is divided."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributed

from lab.core.types import IGNORE
from lab.counts import visible_context
from lab.data.batch import to_batch
from lab.data.packing import Pack
from lab.model.config import DecoderConfig, OptimConfig
from lab.train.loop import compute_loss, finish_gradient, read_statistics, update
from tests.model.conftest import Watch
from tests.modules import training_of

FLOAT64_TOL = 1e-10  # sums of some hundred float64 terms of order ten
FLOAT32_TOL = 1e-7  # relative: weights are float32 in a batch
CFG = DecoderConfig(8, 1, 2, 2, 12, 23, tie_embeddings=False)
HAS_LOSS = np.array([True, False, True, True, False, True, False, False, True])  # by visible context


def pack_of(seed, lengths, size=24):
    """Make a pack of segments whose every second last target, as of documents that end, is none."""
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, CFG.vocab_size, (2, size))
    ends = list(itertools.accumulate(lengths))
    targets[[end - 1 for end in ends[::2]]] = IGNORE
    targets[ends[-1] :] = IGNORE
    return Pack(tokens, targets, list(lengths), stream=0, state=np.zeros(1, np.int64))


PACKS = [pack_of(1, [9, 2, 7]), pack_of(2, [1, 1, 2, 1]), pack_of(3, [8, 8, 8]), pack_of(4, [3, 9])]


def training(double=True, optim=OptimConfig(clip_norm=1e9), **settings):
    sizes = {"batch_tokens": 24 * len(PACKS), "micro_batch_tokens": 24}
    return training_of(CFG, optim=optim, **sizes, double=double, **settings)


def test_optimizer_follows_the_schedule_step_by_step():
    state = training(optim=OptimConfig(lr=0.5, min_lr=0.1, warmup_steps=4, beta2=0.9), steps=8)
    optimizer, schedule = state.optimizer, state.schedule
    assert all(group["betas"] == (0.9, 0.9) for group in optimizer.param_groups)
    seen = []
    for _ in range(9):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    # warm-up 0.5 * n / 4; then 0.1 + 0.4 * (1 + cos) / 2 over four steps, at 0, 45, 90, 135 and 180 degrees
    decay = [0.5, 0.3 + 0.2 * math.sqrt(0.5), 0.3, 0.3 - 0.2 * math.sqrt(0.5), 0.1]
    assert seen == pytest.approx([0.125, 0.25, 0.375, 0.5, *decay], rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # warm-up 0.5 * n / 2; then 0.5; over the last 300 tokens, which are 4 steps of 96, 0.1 + 0.4 * n / 4
        ({"schedule": "wsd", "decay_tokens": 300}, [0.25, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ({"schedule": "wsd", "decay_tokens": 97}, [0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.3, 0.1]),
        ({"schedule": "constant"}, [0.25, *[0.5] * 8]),
    ],
)
def test_schedules_that_are_constant_before_they_decay(schedule, rates):
    state = training(optim=OptimConfig(lr=0.5, min_lr=0.1, warmup_steps=2, **schedule), steps=8)
    seen = []
    for _ in range(9):
        seen.append(state.optimizer.param_groups[0]["lr"])
        state.optimizer.step()
        state.schedule.step()
    assert seen == pytest.approx(rates, rel=1e-12)
    assert set(seen[1:3]) == {0.5}, "exactly, as a run of any other length"


def test_every_setting_reaches_the_optimizer():
    own = {"weight_decay": 0.3, "beta1": 0.6, "beta2": 0.7, "clip_norm": 0.02}
    state, defaults = (
        training(optim=OptimConfig(lr=0.05, min_lr=0.05, warmup_steps=0, **settings)) for settings in (own, {})
    )
    # torch's own AdamW, not fused, on a copy of the model; the loss from the logits, clipped by hand
    for one, (weight_decay, betas, norm) in ((state, (0.3, (0.6, 0.7), 0.02)), (defaults, (0.1, (0.9, 0.95), 1.0))):
        model = copy.deepcopy(one.decoder)
        parameters = list(model.parameters())
        decays = [p for p in parameters if p.ndim > 1]
        groups = [{"params": decays, "weight_decay": weight_decay}]
        groups.append({"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0})
        reference = torch.optim.AdamW(groups, lr=0.05, betas=betas, eps=1e-8, fused=False, foreach=False)
        for pack in PACKS * 2:
            (compute_loss(one, to_batch(pack), stop=False) / len(PACKS)).backward()  # the mean over packs
            finish_gradient(one)
            update(one)
            mean = weighted_mean(model, [pack])[1] / sum(pack.targets != IGNORE)
            gradients = torch.autograd.grad(mean, parameters)
            length = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient * min(1.0, norm / (length + 1e-6))  # as torch.nn.utils does
            reference.step()
        for parameter, expected in zip(one.decoder.parameters(), parameters, strict=True):
            torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=1e-9)


def weighted_mean(decoder, packs):
    """Compute sum of w * loss over sum of w, and the plain sum of losses, target by target from the logits."""
    losses, weights = [], []
    for pack in packs:
        begins = [0, *itertools.accumulate(pack.lengths)]
        for start, stop in itertools.pairwise(begins):
            log_p = decoder(torch.from_numpy(pack.tokens[None, start:stop]))[0].log_softmax(-1)
            for context, target in enumerate(pack.targets[start:stop]):
                if target != IGNORE:
                    losses.append(-log_p[context, target])
                    weights.append(float(HAS_LOSS[context]))
    losses, weights = torch.stack(losses), torch.tensor(weights, dtype=torch.float64)
    return (losses * weights).sum() / weights.sum(), losses.sum()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_gradient_is_the_weighted_mean_and_the_record_the_plain_one(world, monkeypatch):
    """Packs divided among ranks, accumulated as the loop does, averaged as DDP does, sums added by one collective."""
    ranks = [training() for _ in range(world)]
    loss, plain = weighted_mean(ranks[0].decoder, PACKS)
    expected = torch.autograd.grad(loss, list(ranks[0].decoder.parameters()))
    own = 4 // world
    for rank, state in enumerate(ranks):
        for pack in PACKS[rank * own : (rank + 1) * own]:
            kept = np.zeros(24, dtype=bool)
            context = visible_context(pack.lengths)
            kept[: len(context)] = HAS_LOSS[context]
            weighed = replace(pack, weights=kept & (pack.targets != IGNORE))
            (compute_loss(state, to_batch(weighed), stop=False) / own).backward()
    total, calls = sum(state.sums.vector for state in ranks), []
    for parameters in zip(*(state.decoder.parameters() for state in ranks), strict=True):
        mean = sum(parameter.grad for parameter in parameters) / world
        for parameter in parameters:
            parameter.grad = mean.clone()
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", lambda sums: calls.append(sums.copy_(total)))
    for state in ranks:
        finish_gradient(state)
        stats = read_statistics(state)
        for parameter, gradient in zip(state.decoder.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=FLOAT32_TOL, atol=FLOAT64_TOL)
        assert stats.sums["loss"] == pytest.approx(plain.item(), rel=FLOAT64_TOL)
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in expected))
        assert stats.grad_norm == pytest.approx(norm, rel=FLOAT32_TOL)
        assert stats.sums["targets"] == sum(int((pack.targets != IGNORE).sum()) for pack in PACKS)
    assert len(calls) == world, "one a rank"


def add_gradients(state):
    for pack in PACKS[:2]:
        compute_loss(state, to_batch(pack), stop=False).backward()


def test_all_gradients_are_scaled_in_one_kernel_as_in_float32_and_then_cut_to_the_norm(monkeypatch):
    state = training(double=False)
    parameters = list(state.decoder.parameters())
    add_gradients(state)
    before = [p.grad.numpy().copy() for p in parameters]
    kernels = []

    # torch/aten/src/ATen/native/cuda/ForeachBinaryOpScalarTensor.cu and ForeachUtils.h, can_use_fast_route: a GPU
    # multiplies a list in one kernel if all has one dtype
    def note(operator, arguments, out):
        if operator is torch.ops.aten._foreach_mul_.Tensor:
            tensors, factor = arguments
            is_fast = {(x.dtype, x.device) for x in tensors} == {(factor.dtype, factor.device)}
            kernels.append(1 if is_fast else len(tensors))

    with Watch(note):
        finish_gradient(state)
    assert sum(kernels) == 2, "the scale and the clipping, whatever the number of parameters"
    factor = np.float32(96 / 19)  # tokens of the batch over those that are scored, which is no power of two
    for parameter, gradient in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(parameter.grad.numpy(), gradient * factor)
    own = read_statistics(state).grad_norm
    state.optimizer.zero_grad()
    state.recipe = replace(state.recipe, optim=OptimConfig(clip_norm=0.01))
    add_gradients(state)
    finish_gradient(state)
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in parameters))
    assert norm == pytest.approx(0.01, rel=1e-3)  # torch divides by the norm plus 1e-6
    assert read_statistics(state).grad_norm == own > 0.01
