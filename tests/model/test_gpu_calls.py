"""How GPU kernels are called: how often, by which signature, and what is left to others."""

import inspect

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lab.core.errors import ConfigError
from lab.model import devices
from lab.model.attention import backends
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.model.block import Block
from lab.model.config import DecoderConfig, Sliding
from lab.positions import distance, frequencies
from tests.model import stand_ins
from tests.model.by_definition import ONCE, Case, assert_with_gradients, attention_by_distance, draw
from tests.model.conftest import Watch
from tests.model.test_contract import BFLOAT16_TOL, WIDE, WIDE_ROPE


@pytest.mark.parametrize(("name", "n_bands"), [("string", 2), ("self_extend", 2), ("rerope", 2), ("dca", 3)])
def test_a_band_is_one_call_of_flash_attention_in_each_pass(monkeypatch, name, n_bands):
    monkeypatch.setattr(devices, "device_type", lambda device: "cuda")
    calls, own = [], stand_ins.OPERATORS
    names = ("_flash_attention_forward", "_flash_attention_backward")
    with stand_ins.on_cpu({n: lambda *a, n=n, **b: calls.append(n) or own[n](*a, **b) for n in names}):
        leaves = [x.bfloat16().requires_grad_() for x in draw(18, 1, 4, 2, 110, 110, WIDE)]
        case = Case(110, 110, lengths=(50, 3, 56))
        case.attend(*leaves, WIDE_ROPE, distance(**ONCE[name][0]), "varlen").sum().backward()
    assert [calls.count(name) for name in names] == [n_bands, n_bands]


LSE_TOL = 2e-6  # kernels return the log-sum-exp in float32


@pytest.mark.parametrize("window", [None, 1, 5, 17, 40])
@pytest.mark.parametrize("backend", ["varlen", "flash", "xformers"])
def test_windows_of_kernels_by_definition(stood_in, monkeypatch, backend, window):
    monkeypatch.setattr(stand_ins, "HALF", (*stand_ins.HALF, torch.float64))
    case = Case(36, 36, lengths=(9, 1, 17, 6))  # and 3 tokens of padding
    leaves = [x.requires_grad_() for x in draw(6, 1, 4, 2, 36, 36, 8)]
    sees = case.sees()
    shown = lambda b, m, n: sees(b, m, n) and m - n < (window or 36)  # noqa: E731
    truth = attention_by_distance(*leaves, [0.0] * 4, lambda b, m, n: 0, shown)
    out = CAUSAL_KERNELS[backend](*leaves, Segments.from_lengths(case.lengths, 36), window)
    assert_with_gradients(out, truth, leaves, LSE_TOL)


@pytest.mark.parametrize("method", [distance("plain"), Sliding(window=50)], ids=["plain", "window"])
def test_bytes_between_the_graphs(stood_in, method):
    """Of a layer's token at the heads of 1.49B, by hand: the kernels read q k v and write o, 9.2 KB, and read g q k v o
    and write dq dk dv, 18.4 KB.
    """
    tokens, lengths = 256, (100, 3, 150)
    drawn = draw(7, 1, 32, 4, tokens, tokens, WIDE)
    leaves = [x.bfloat16().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in drawn]
    cfg = DecoderConfig(8, 1, 32, 4, 8, 8, tie_embeddings=True, attention_width=32 * WIDE)
    block = Block(cfg, 0, "varlen", (lambda *_: leaves, lambda block, x, out: out))
    segments = Segments.from_lengths(lengths, tokens)
    ids = segments.position_ids
    layout = Layout(ids, ids, WIDE_ROPE, method, torch.bfloat16, segments, (0,) * len(lengths))
    x = torch.zeros(1, tokens, 8)
    block(x, layout, None)  # makes what layers share
    n_bytes = []

    def note(operator, arguments, out):
        if not operator.is_view and "empty" not in str(operator):
            tensors = [each for each in tree_leaves((arguments, out)) if isinstance(each, torch.Tensor)]
            n_bytes.append(sum(each.numel() * each.element_size() for each in tensors))

    with Watch(note):
        out = block(x, layout, None)
        out.backward(out.detach())
    assert 27 <= sum(n_bytes) / tokens / 1e3 <= 36


@pytest.mark.parametrize("width", [12, 264])
def test_heads_that_no_half_precision_kernel_takes_are_left_to_sdpa(stood_in, width):
    parameters, rel = ONCE["string"]
    rope, case = frequencies("rope", head_dim=width), Case(9, 9)
    drawn = [x.bfloat16() for x in draw(14, 1, 2, 1, 9, 9, width)]
    out = case.attend(*drawn, rope, distance(**parameters), "auto")
    expected = case.truth(*drawn, [10000.0 ** (-2 * j / width) for j in range(width // 2)], rel)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2 * BFLOAT16_TOL)
    with pytest.raises(ConfigError, match=f"^backend=varlen: cannot run head_dim={width}, "):
        case.attend(*drawn, rope, distance(**parameters), "varlen")


def test_auto_takes_a_variable_length_kernel_for_half_precision_only(device):
    assert backends.choose_backend("auto", device, torch.bfloat16)[0] == "varlen"
    assert backends.choose_backend("auto", device, torch.float32)[0] == "sdpa"
    with pytest.raises(ConfigError, match=r"^train\.backend=varlen: .*float32; use sdpa"):
        backends.choose_backend("varlen", device, torch.float32)


@pytest.mark.parametrize("name", stand_ins.OPERATORS)
def test_stand_ins_take_what_the_operator_takes(name):
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    declared = [a.name for a in operator._schema.arguments]
    taken = [*inspect.signature(stand_ins.OPERATORS[name]).parameters]
    assert taken[: len(declared)] == declared, f"aten::{name} has parameters {declared}"
