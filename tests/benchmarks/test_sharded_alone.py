"""The lab's side of the comparison of training speeds, as a run computes on a GPU: on a mesh of one rank."""

import pytest
import torch

from benchmarks import peers, train
from lab.config.sections import TrainConfig
from lab.model.config import DecoderConfig

CFG = DecoderConfig(16, 2, 2, 1, 23, 51, False)


def steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainConfig, "resolved_strategy", lambda self, on_gpu: "fsdp")  # what it is on a GPU
        peer = peers.ours(CFG, 2, 32, torch.device("cpu"), "bfloat16", compiled=False)
    seen = []
    autocast = lambda block, inputs: seen.append((inputs[0].dtype, torch.is_autocast_enabled("cpu")))  # noqa: E731
    peer.model.blocks[0].register_forward_pre_hook(autocast)
    batch = tuple(torch.randint(51, (2, 2, 32), generator=torch.Generator().manual_seed(1)))
    losses = []
    peer.model.register_forward_hook(lambda model, inputs, out: losses.append(float(out)))
    step = train.stepper(peer, batch)
    for _ in range(30):
        step()
    return losses, set(seen), {p.dtype for p in peer.model.parameters()}


def test_a_step_on_one_rank_computes_in_bf16_from_float32_weights_without_autocast_and_learns(ranks):
    ((losses, hidden, weights),) = ranks(1).run(steps)
    assert (hidden, weights) == ({(torch.bfloat16, False)}, {torch.float32})
    assert losses[-1] < 0.99 * losses[0]
