"""Calls that torch and the kernel packages may change: each is compared with what the installed version declares.

A failure here names the call that a new version has changed; its stand-in and its caller are to be read again then.
"""

import importlib.util
import inspect

import pytest
import torch
from torch.nn.attention import varlen

from tests.model import stand_ins

Q = "Tensor query, Tensor key, Tensor value, "
FLASH = "Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, "
FLASH_OPTIONS = "*, float? scale=None, SymInt? window_size_left=None, SymInt? window_size_right=None"
EFFICIENT = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
SCHEMAS = {  # what our calls rely on: arguments by place, and what comes back
    "_flash_attention_forward": (
        f"({Q}{FLASH.replace('Tensor cum', 'Tensor? cum')}bool return_debug_mask, {FLASH_OPTIONS}",
        "(Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)",
    ),
    "_flash_attention_backward": (
        f"(Tensor grad_out, {Q}Tensor out, Tensor logsumexp, {FLASH}Tensor rng_state, Tensor unused, {FLASH_OPTIONS})",
        "(Tensor, Tensor, Tensor)",
    ),
    "_efficient_attention_forward": (
        f"({Q}Tensor? bias, {EFFICIENT}SymInt? max_seqlen_q, SymInt? max_seqlen_k, float dropout_p, "
        "int custom_mask_type, bool compute_log_sumexp=False, *, float? scale=None",
        "(Tensor output, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, SymInt max_seqlen_batch_q, "
        "SymInt max_seqlen_batch_k)",
    ),
    "_efficient_attention_backward": (
        f"(Tensor grad_out_, {Q}Tensor? bias, Tensor out, {EFFICIENT}SymInt max_seqlen_q, SymInt max_seqlen_k, "
        "Tensor logsumexp, float dropout_p, Tensor philox_seed, Tensor philox_offset, int custom_mask_type, "
        "bool bias_requires_grad, *, float? scale=None",
        "(Tensor, Tensor, Tensor, Tensor)",
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


FLASH_ATTN = (  # flash-attn 2.8, flash_attn/flash_attn_interface.py
    "(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, "
    "causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, "
    "return_attn_probs=False, block_table=None)"
)
XFORMERS = (  # xformers 0.0.35, ops/fmha/__init__.py and ops/fmha/attn_bias.py
    "(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None)",
    "(q_seqlen, kv_seqlen=None, *, device=None)",
)


def bare(function):
    """Write a signature without annotations."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    shorn = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=shorn, return_annotation=inspect.Signature.empty))


def test_stand_ins_have_the_documented_signatures_of_the_packages():
    assert bare(stand_ins.flash_attn_varlen_func) == FLASH_ATTN
    bias = stand_ins.BlockDiagonalCausalFromBottomRightMask
    assert (bare(stand_ins.memory_efficient_attention), bare(bias.from_seqlens)) == XFORMERS


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="needs flash-attn")
def test_flash_attn_is_declared_as_documented():
    from flash_attn import flash_attn_varlen_func

    assert bare(flash_attn_varlen_func) == FLASH_ATTN, "flash_attn_varlen_func"


@pytest.mark.skipif(importlib.util.find_spec("xformers") is None, reason="needs xformers")
def test_xformers_is_declared_as_documented():
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalCausalFromBottomRightMask as Bias

    assert (bare(memory_efficient_attention), bare(Bias.from_seqlens)) == XFORMERS, "xformers"
