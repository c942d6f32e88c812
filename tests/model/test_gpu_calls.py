"""How GPU kernels are called: how often, by which signature, and what is left to others."""

import importlib.util
import inspect

import pytest
import torch
from torch.nn.attention import varlen

from lab.errors import ConfigError
from lab.model import devices
from lab.model.attention import backends
from lab.positions import distance, frequencies
from tests.model import stand_ins
from tests.model.by_definition import ONCE, Case, draw
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


Q = "Tensor query, Tensor key, Tensor value, "
FLASH = "Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, "
FLASH_OPTIONS = "*, float? scale=None, SymInt? window_size_left=None, SymInt? window_size_right=None"
SCHEMAS = {  # what our calls rely on: arguments by place, and what comes back
    "_flash_attention_forward": (
        f"({Q}{FLASH.replace('Tensor cum', 'Tensor? cum')}bool return_debug_mask, {FLASH_OPTIONS}",
        "(Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)",
    ),
    "_flash_attention_backward": (
        f"(Tensor grad_out, {Q}Tensor out, Tensor logsumexp, {FLASH}Tensor rng_state, Tensor unused, {FLASH_OPTIONS})",
        "(Tensor, Tensor, Tensor)",
    ),
    "_scaled_dot_product_flash_attention_for_cpu": (
        f"({Q}float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None)",
        "(Tensor output, Tensor logsumexp)",
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        f"(Tensor grad_out, {Q}Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, "
        "Tensor? attn_mask=None, float? scale=None)",
        "(Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    ),
}


@pytest.mark.parametrize(("name", "arguments", "returns"), [(n, *s) for n, s in SCHEMAS.items()], ids=SCHEMAS)
def test_torch_declares_the_operator_as_it_is_called(name, arguments, returns):
    schema = str(getattr(torch.ops.aten, name).default._schema)
    assert schema.startswith(f"aten::{name}{arguments}"), f"aten::{name} takes other arguments: {schema}"
    assert schema.endswith(f" -> {returns}"), f"aten::{name} returns something else: {schema}"


def parameters(function):
    return [(p.name, p.kind.name, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", stand_ins.OPERATORS)
def test_stand_ins_take_what_the_operator_takes(name):
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    declared = [a.name for a in operator._schema.arguments]
    taken = [p for p, _, _ in parameters(stand_ins.OPERATORS[name])]
    assert taken[: len(declared)] == declared, f"aten::{name} has parameters {declared}"


VARLEN = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]


def test_varlen_attn_has_one_of_the_signatures_that_are_stood_in_for():
    known = [parameters(f) for f in (stand_ins.varlen_attn_2_11, stand_ins.varlen_attn_2_12)]
    assert parameters(varlen.varlen_attn) in known, f"varlen_attn{inspect.signature(varlen.varlen_attn)}"
    assert all([name for name, kind, _ in own if kind == "POSITIONAL_OR_KEYWORD"] == VARLEN for own in known)
