"""One decoder shape in three implementations: the lab's, litgpt's and transformers'.

    pip install -e '.[bench]' && pip install --no-deps 'litgpt==0.5.13'

litgpt comes without its requirements, because they exclude the huggingface-hub that transformers needs.

Each is given rows of tokens with their targets and returns the mean loss; the lab takes the rows as one packed row, as
its runs do, and computes bfloat16 as they do: on a GPU in bfloat16 weights, sharded over this process alone, otherwise
under autocast. `compiled` compiles the lab's blocks one by one, and each peer's whole model, as litgpt's recipe does.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu.training import new_decoder, shard_alone
from benchmarks.record import Skipped
from lab.config.sections import TrainConfig
from lab.model.attention import backends
from lab.model.attention.segments import Segments
from lab.model.config import DecoderConfig

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A model and its mean loss on tokens and targets, both (rows, window)."""

    model: nn.Module
    loss: Loss
    autocast: bool


def ours(cfg: DecoderConfig, rows: int, window: int, device: torch.device, dtype: str, *, compiled: bool) -> Peer:
    """Build the lab's decoder, compiled as `train.compile: true` does."""
    backend, _ = backends.choose("auto", device, getattr(torch, dtype))
    decoder = new_decoder(cfg, device, backend=backend, compiler="inductor" if compiled else None)
    bf16 = dtype == "bfloat16"
    run = TrainConfig(precision="bf16" if bf16 else "fp32")
    sharded = run.resolved_strategy(on_gpu=device.type == "cuda") == "fsdp"
    if sharded:
        shard_alone(decoder, device)
    segments = Segments.from_lengths([window] * rows, rows * window, device)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        summed = decoder(tokens.view(1, -1), segments=segments, starts=(0,) * rows, targets=targets.view(1, -1))
        return summed / targets.numel()

    return Peer(decoder, loss, autocast=bf16 and not sharded)


def litgpt(cfg: DecoderConfig, rows: int, window: int, device: torch.device, dtype: str, *, compiled: bool) -> Peer:
    """Build litgpt's model with the loss of its pretraining recipe."""
    theirs = found("litgpt")
    chunked = importlib.import_module("litgpt.utils").chunked_cross_entropy
    config = theirs.Config(
        block_size=window,
        vocab_size=cfg.vocab_size,
        padded_vocab_size=cfg.vocab_size,
        n_layer=cfg.n_layers,
        n_head=cfg.n_heads,
        n_query_groups=cfg.n_kv_heads,
        n_embd=cfg.d_model,
        intermediate_size=cfg.d_ff,
        rotary_percentage=1.0,
        rope_base=int(cfg.theta),
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=cfg.norm_eps,
        mlp_class_name="LLaMAMLP",
    )
    with device:
        model = theirs.GPT(config)
    run = torch.compile(model) if compiled else model
    return Peer(model, lambda tokens, targets: chunked(run(tokens), targets), autocast=dtype == "bfloat16")


def transformers(
    cfg: DecoderConfig, rows: int, window: int, device: torch.device, dtype: str, *, compiled: bool
) -> Peer:
    """Build transformers' Llama."""
    theirs = found("transformers")
    config = theirs.LlamaConfig(
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.d_model,
        intermediate_size=cfg.d_ff,
        num_hidden_layers=cfg.n_layers,
        num_attention_heads=cfg.n_heads,
        num_key_value_heads=cfg.n_kv_heads,
        max_position_embeddings=window,
        rms_norm_eps=cfg.norm_eps,
        tie_word_embeddings=cfg.tie_embeddings,
        attn_implementation="sdpa",
        use_cache=False,
    )
    with device:
        model = theirs.LlamaForCausalLM(config)
    run = torch.compile(model) if compiled else model

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = run(tokens).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Peer(model, loss, autocast=dtype == "bfloat16")


def found(name: str) -> Any:
    """Import a peer.

    Raises: Skipped where it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(f"{name} cannot be imported ({error}); see benchmarks/peers.py") from None


MAKERS = {"ours": ours, "litgpt": litgpt, "transformers": transformers}
SIDES = {
    f"{name}{'+compile' if compiled else ''}": partial(maker, compiled=compiled)
    for name, maker in MAKERS.items()
    for compiled in (False, True)
}
