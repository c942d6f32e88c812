"""litgpt's TinyLlama against the same shape here, forward and backward in turns, where litgpt is installed."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.stage import Case, Options, run
from benchmarks.gpu.training import new_decoder
from benchmarks.peers import found
from benchmarks.timing import best_device, in_turns, ratio
from lab.model.config import DecoderConfig

NAME, ROWS = "tiny-llama-1.1b", 8


def measure(options: Options) -> dict[str, Any]:
    """Time both in turns on the same tokens.

    Raises: Skipped without litgpt.
    """
    litgpt = found("litgpt")
    device, size = best_device(), options.size
    sizes = {} if device.type == "cuda" else {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_query_groups": 2}
    config = litgpt.Config.from_name(NAME, **sizes, **({"intermediate_size": 176} if sizes else {}))
    theirs = litgpt.GPT(config).to(device)
    ours = new_decoder(same_shape(config), device, backend="auto", recompute=False)
    tokens = torch.randint(config.vocab_size, (ROWS, size.window), device=device)

    def their_loss() -> Tensor:
        logits = theirs(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten(), reduction="sum")

    def backward(model: torch.nn.Module, loss: Any) -> None:
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            total = loss()
        total.backward()

    calls = {
        "ours": lambda: backward(ours, lambda: ours(tokens, targets=tokens)),
        "litgpt": lambda: backward(theirs, their_loss),
    }
    seconds = in_turns(calls, device, size.turns)
    return {
        "parameters": sum(p.numel() for p in ours.parameters()),
        "litgpt_parameters": sum(p.numel() for p in theirs.parameters()),
        "tokens": tokens.numel(),
        "ours_s": statistics.median(seconds["ours"]),
        "litgpt_s": statistics.median(seconds["litgpt"]),
        "litgpt_over_ours": ratio(seconds["litgpt"], seconds["ours"]),
    }


def same_shape(config: Any) -> DecoderConfig:
    """Build the config of a decoder of litgpt's shape."""
    return DecoderConfig(
        d_model=config.n_embd,
        n_layers=config.n_layer,
        n_heads=config.n_head,
        n_kv_heads=config.n_query_groups,
        d_ff=config.intermediate_size,
        vocab_size=config.padded_vocab_size,
        tie_embeddings=False,
    )


def cases(options: Options) -> list[Case]:
    """List the one comparison."""
    return [(NAME, lambda: measure(options))]


if __name__ == "__main__":
    run(cases)
