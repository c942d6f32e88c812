"""Kernels that a training step launches, counted: operators outside of blocks, calls in the code of compiled ones."""

import contextlib
import re
from dataclasses import replace

import pytest
import torch
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.utils._pytree import tree_leaves

from lab.model import block, loss
from lab.model.attention import devices
from lab.model.loss import chunk_terms
from lab.positions import frequencies
from tests.model import stand_ins, test_compiled_blocks
from tests.model.stand_ins import definition
from tests.model.test_compiled_blocks import BANDS, CFG, PLAIN, draw, training
from tests.model.test_gpu_calls import Launches, unseen
from tests.model.test_waits import DEVICE, on_device

CALLS = re.compile(r"^ +(?:\w+ = )?(?:cpp_fused_\w+|extern_kernels\.\w+|torch\.ops\.\w+\.\w+\.\w+)\(", re.MULTILINE)
WIDTH = 16  # of heads, which kernels take
OUTSIDE = 90  # ids and rotations, embedding and last norm, two chunks of the loss, and the step's sums
UPDATE = 6  # two groups of weights
# A block multiplies by 7 weights, once forward and twice backward, and attends once in each pass. Fused are both norms,
# the rotations, SwiGLU and the last sum; backward the same, and the outputs' gradient is copied for attention.
WHOLE, AROUND = (13, 21), (4, 7, 8, 10)


class OnDevice(Launches):
    """Count the operators of the device alone, not the host's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = self.n
        out = super().__torch_dispatch__(func, types, args, kwargs)
        found = [x for x in tree_leaves((args, out)) if isinstance(x, torch.Tensor) and x.device == DEVICE]
        self.n = self.n if found else before
        return out


def module_of(monkeypatch, n_layers, **settings):
    sizes = replace(CFG, d_model=4 * WIDTH, n_heads=4, n_kv_heads=2, n_layers=n_layers)
    monkeypatch.setattr(test_compiled_blocks, "CFG", sizes)
    return training(frequencies("rope", head_dim=WIDTH), **settings)


def launches(monkeypatch, n_layers):
    """Count the operators of a micro-batch without its blocks' own, and of clipping and of the update."""
    module = module_of(monkeypatch, n_layers, kernel="varlen")
    optimizer = module.configure_optimizers()["optimizer"]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with Launches() as update:
        optimizer.step()
    module.zero_grad()
    module.decoder.bfloat16().to(DEVICE)
    for seed in range(2):  # the first moves the sums
        with OnDevice() as micro_batch:
            module.training_step(on_device(draw(seed, ())), 0).backward()
    return micro_batch.n, update.n


def test_a_micro_batch_launches_little_outside_of_its_blocks_and_the_update_as_much_for_any_model(monkeypatch):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    monkeypatch.setattr(loss, "compiled_terms", lambda: unseen(chunk_terms))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # torch knows no autocast for this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    (one, update), (three, same) = (launches(monkeypatch, n_layers) for n_layers in (1, 3))
    assert one - (three - one) / 2 <= OUTSIDE
    assert update == same <= UPDATE


def calls(code):
    """Count the kernels that a graph's code calls: fused ones, products and attention."""
    return len(CALLS.findall(code[code.index("def call(") :]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "method", "most"),
    [pytest.param("varlen", PLAIN, WHOLE, id="whole"), pytest.param("sdpa", BANDS["dca"], AROUND, id="around_bands")],
)
def test_a_compiled_block_launches_its_products_and_few_kernels_between_them(monkeypatch, kernel, method, most):
    monkeypatch.setattr(definition, "HALF", (*definition.HALF, torch.float32))
    monkeypatch.setattr(block, "together", lambda layers, x: tuple(layer(x) for layer in layers))  # as on a GPU
    torch._dynamo.reset()
    with stand_ins.on_cpu(), fresh_cache():
        module = module_of(monkeypatch, 1, kernel=kernel, method=method, compiler="inductor")
        _, codes = run_and_get_code(lambda: module.training_step(draw(0, ()), 0).backward())
    counts = sorted(map(calls, codes))
    assert len(counts) == len(most)
    assert all(n <= limit for n, limit in zip(counts, most, strict=True)), counts
