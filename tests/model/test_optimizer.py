"""Muon beside AdamW: steps by the singular value decomposition, what is skipped, resumed and refused."""

import math

import pytest
import torch

from lab.errors import ConfigError
from lab.estimate import checkpoint_bytes, memory_of
from lab.model.config import DecoderConfig, OptimConfig
from lab.model.decoder import Decoder
from lab.model.optimizer import make_optimizer
from tests.fits import UNPROBED, assert_same_run, cut_after, load, train

CFG = DecoderConfig(8, 1, 2, 1, 12, 11, tie_embeddings=False, qkv="norm")
RATE, DECAY, MOMENTUM = 0.01, 0.1, 0.95
MUON_TOL = 0.05  # relative to the update: five products in bfloat16, of 8 bits
ADAM_TOL = 1e-6  # of weights of order one in float32


def spectral(x):
    """Take the five steps of Jordan's polynomial on the singular values of X / |X|."""
    u, s, vt = torch.linalg.svd(x / x.norm(), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ vt


def drawn(model, seed):
    """Draw a gradient for each parameter."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}


def step(model, optimizer, gradients):
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone()
    optimizer.step()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_two_steps_are_those_of_the_equations():
    model = Decoder(CFG, seed=0)
    optimizer = make_optimizer(model, OptimConfig(lr=RATE, min_lr=0, beta2=0.95, matrices="muon"))
    expected = {name: w.double() for name, w in weights(model).items()}
    mean, square = ({name: torch.zeros_like(w) for name, w in expected.items()} for _ in range(2))
    by_muon = [name for name, weight in expected.items() if name.startswith("blocks.") and weight.ndim == 2]
    assert len(by_muon) == 7, "q, k, v, out; gate, up, out"
    for number in (1, 2):
        before, gradients = weights(model), drawn(model, number)
        step(model, optimizer, gradients)
        for name, weight in weights(model).items():
            g = gradients[name].double()
            decay = 1 - RATE * DECAY * (g.ndim == 2)
            if name in by_muon:
                mean[name] = MOMENTUM * mean[name] + (1 - MOMENTUM) * g
                scale = RATE * 0.2 * math.sqrt(max(g.shape))
                update = scale * spectral((1 - MOMENTUM) * g + MOMENTUM * mean[name])
                error = (weight - (before[name].double() * decay - update)).norm() / update.norm()
                assert error < MUON_TOL, (name, float(error))
                continue
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.95 * square[name] + 0.05 * g**2
            unbiased = mean[name] / (1 - 0.9**number), square[name] / (1 - 0.95**number)
            expected[name] = expected[name] * decay - RATE * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
            torch.testing.assert_close(weight.double(), expected[name], rtol=0, atol=ADAM_TOL, msg=name)


def test_a_step_that_is_not_finite_changes_neither_weights_nor_state():
    model = Decoder(CFG, seed=0)
    optimizer = make_optimizer(model, OptimConfig(matrices="muon"))
    step(model, optimizer, drawn(model, 1))
    before = weights(model)
    kept = {key: {name: value.clone() for name, value in state.items()} for key, state in optimizer.state.items()}
    optimizer.found_inf = torch.ones(())
    step(model, optimizer, {name: torch.full_like(w, math.nan) for name, w in before.items()})
    assert all(torch.equal(w, before[name]) for name, w in weights(model).items())
    assert all(torch.equal(value, kept[key][name]) for key, s in optimizer.state.items() for name, value in s.items())


SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")


def test_a_run_continues_bit_for_bit(tmp_path):
    words = (*SHORT, "--optim.matrices=muon", "--train.precision=fp32")
    whole = train(tmp_path, "whole", *words)
    cut_after(whole, tmp_path / "runs" / "cut")
    assert_same_run(whole, train(tmp_path, "cut", *words, resume=True))


def test_strategies_that_shard_are_refused_and_not_chosen():
    line = "train.strategy=fsdp: shards matrices, which optim.matrices=muon needs whole; use auto"
    with pytest.raises(ConfigError, match=line):
        load("--optim.matrices=muon", "--train.strategy=fsdp")
    config = load("--optim.matrices=muon", "--train.precision=bf16")
    assert [config.train.resolved_strategy(True, optim.shards) for optim in (config.optim, load().optim)] == [
        "single",
        "fsdp",
    ]


def test_the_estimate_counts_one_moment_of_matrices():
    plain, muon = load(), load("--optim.matrices=muon")
    model = plain.model
    matrices = model.n_layers * model.d_model * (2 * model.d_model + 2 * model.kv_width + 3 * model.d_ff)
    assert checkpoint_bytes(plain) - checkpoint_bytes(muon) == 4 * matrices
    assert memory_of(plain).held["optimizer"] - memory_of(muon).held["optimizer"] >= 4 * matrices
