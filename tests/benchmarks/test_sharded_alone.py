"""The step that the GPU's benchmarks measure, on a mesh of one rank."""

import torch

from benchmarks.gpu.training import Setting, new_decoder, packs, shard_alone, stepper
from lab.model.config import DecoderConfig

CFG = DecoderConfig(16, 2, 2, 1, 23, 51, False)


def steps():
    device = torch.device("cpu")
    decoder = new_decoder(CFG, device, backend="sdpa", recompute=False)
    shard_alone(decoder, device)
    seen = []
    decoder.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].dtype))
    torch.manual_seed(1)
    drawn = packs(CFG, Setting(tokens=64, window=32, steps=1), device)[:1]
    step = stepper(decoder, drawn)
    return [float(step()) for _ in range(30)], set(seen), {p.dtype for p in decoder.parameters()}


def test_a_step_on_one_rank_computes_in_bf16_from_float32_weights_and_learns(ranks):
    ((losses, hidden, weights),) = ranks(1).run(steps)
    assert (hidden, weights) == ({torch.bfloat16}, {torch.float32})
    assert losses[-1] < losses[0] - 0.01
