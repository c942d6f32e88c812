"""What a training step copies to the device and reads from it, counted on a device that has no values to read."""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.model import devices
from lab.train.loop import compute_loss, finish_gradient
from lab.train.state import StepSums
from tests.model.test_compiled_blocks import PLAIN, ROPE, SHARPENED, draw, training

DEVICE = torch.device("meta")  # reading a value of it, by item(), bool() or nonzero(), raises


class Copies(TorchDispatchMode):
    """Count the copies between host and device, the host's tensors being those on the CPU."""

    def __init__(self):
        super().__init__()
        self.waiting, self.queued, self.reads = [], 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            there, to = args[0].device == DEVICE, torch.device(kwargs.get("device") or args[0].device)
            if there and to.type == "cpu":
                self.reads += 1
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            if to == DEVICE and not there:
                self.queued += bool(kwargs.get("non_blocking"))
                self.waiting += [] if kwargs.get("non_blocking") else [tuple(args[0].shape)]
        if func is torch.ops.aten.lift_fresh.default and args[0].device == DEVICE:
            self.waiting.append("torch.tensor(host values, device=...)")
        return func(*args, **kwargs)


CASES = {  # frequencies, distance, what packs have, and the copies of a pack that are queued: inverse frequencies, and
    # the ends, keys and queries of anchored spans and of rounds of tiles
    "weights": (ROPE, PLAIN, ("weights",), 1),
    "sharpened_by_layer": (SHARPENED, PLAIN, (), 1),
    "gaps": (ROPE, PLAIN, ("gaps",), 1),
    "anchors": (ROPE, PLAIN, ("anchors",), 3),
}


@pytest.mark.parametrize(("given", "method", "kinds", "queued"), CASES.values(), ids=CASES)
def test_a_step_waits_for_one_copy_to_the_host_and_none_to_the_device(monkeypatch, given, method, kinds, queued):
    monkeypatch.setattr(devices, "device_type", lambda device: "cuda")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # torch knows no autocast for this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    # torch 2.11 takes the out_dtype of addmm for another argument on this device
    monkeypatch.setattr("lab.model.loss.add_product", lambda total, a, b: total.add_(a @ b))
    state = training(given, kernel="varlen", method=method)
    state.decoder.bfloat16().to(DEVICE)
    first, *others = [draw(seed, kinds).to(DEVICE) for seed in range(3)]
    state.sums = StepSums(DEVICE)
    compute_loss(state, first, stop=False).backward()
    with Copies() as copies:
        for batch in others:
            compute_loss(state, batch, stop=False).backward()
        finish_gradient(state)
        state.sums.copied.tolist()
    assert copies.waiting == []
    assert copies.queued == len(others) * queued
    assert copies.reads == 1, "of the step's statistics"
