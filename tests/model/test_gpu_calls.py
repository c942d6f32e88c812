"""How GPU kernels are called: how often, by which signature, and what is left to others."""

import importlib.util

import pytest
import torch

from lab.errors import ConfigError
from lab.model.attention import backends, devices
from lab.model.attention.span_kernels import suits
from lab.positions import distance, frequencies
from tests.model import stand_ins
from tests.model.dense import draw
from tests.model.equations import ONCE, Case
from tests.model.test_contract import BFLOAT16_TOL, WIDE, WIDE_ROPE, compare_on

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "n_bands"), [("string", 2), ("self_extend", 2), ("rerope", 2), ("dca", 3)])
def test_a_band_is_one_call_of_flash_attention_in_each_pass(monkeypatch, name, n_bands):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    calls = []
    kernels = {
        name: lambda *args, name=name, **kwargs: calls.append(name) or stand_ins.OPERATORS[name](*args, **kwargs)
        for name in ("_flash_attention_forward", "_flash_attention_backward")
    }
    with stand_ins.on_cpu(kernels):
        leaves = [x.bfloat16().requires_grad_() for x in draw(18, 1, 4, 2, 110, 110, WIDE)]
        case = Case(110, 110, lengths=(50, 3, 56))
        case.attend(*leaves, WIDE_ROPE, distance(**ONCE[name][0]), "varlen").sum().backward()
    assert [calls.count(name) for name in kernels] == [n_bands, n_bands]


@pytest.mark.parametrize("signature", ["varlen_attn_2_11", "varlen_attn_2_12"])
def test_varlen_attn_of_every_torch_is_called_as_it_asks(stood_in, monkeypatch, signature):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", getattr(stand_ins, signature))
    compare_on(CPU, torch.bfloat16, BFLOAT16_TOL, "varlen", Case(30, 30, lengths=(20, 10)), *ONCE["plain"])


@pytest.mark.parametrize("width", [12, 264])
def test_heads_that_no_half_precision_kernel_takes_are_left_to_sdpa(stood_in, width):
    parameters, rel = ONCE["string"]
    rope, case = frequencies("rope", head_dim=width), Case(9, 9)
    drawn = [x.bfloat16() for x in draw(14, 1, 2, 1, 9, 9, width)]
    out = case.attend(*drawn, rope, distance(**parameters), "auto")
    expected = case.truth(*drawn, [10000.0 ** (-2 * j / width) for j in range(width // 2)], rel)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2 * BFLOAT16_TOL)
    with pytest.raises(ConfigError, match=f"^backend=varlen: cannot run head_dim={width}; use sdpa"):
        case.attend(*drawn, rope, distance(**parameters), "varlen")


def test_auto_takes_a_variable_length_kernel_for_half_precision_only(device):
    of_3 = importlib.util.find_spec("flash_attn_interface")
    there = device.type == "cpu" or (importlib.util.find_spec("flash_attn") and not of_3)
    assert backends.choose("auto", device, torch.bfloat16)[0] == ("flash" if there else "varlen")
    assert backends.choose("auto", device, torch.float32)[0] == "sdpa"
    with pytest.raises(ConfigError, match=r"^train\.backend=varlen: takes float16 or bfloat16, not float32; use sdpa"):
        backends.choose("varlen", device, torch.float32)


def test_fused_kernels_suit_what_they_document(stood_in):
    assert suits(torch.zeros(1, 512))
    assert suits(torch.zeros(1, 64, dtype=torch.float16))
    assert not suits(torch.zeros(1, 12))
    assert not suits(torch.zeros(1, 64, dtype=torch.float64))
