"""Tests per second of greedy generation against transformers' `generate`: the same weights, prompts and new tokens.

    python -m benchmarks.generation [--shapes demo,large] [--lengths 256,1024,4096] [--batches 1,8,100]
        [--new-tokens 24] [--turns 5] [--most-tokens 30000] [--threads 1] [--dtype float32] [--json FILE]

Both run in turns in this process, and a ratio is the median of the turns' ratios: seconds of transformers over ours.
`prefill` is a call for one new token, `step` what each further token adds, `whole` all of them without a stop token.
Weights and prompts are random, and `stopping` is generation up to a stop token, the commonest in the answers. `same` is
the share of answers that are equal token for token up to the stop. Cells of more than --most-tokens prompt tokens are
skipped, with a line.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.timing import best_device, heading, in_turns, ratio
from lab.model.decoder import Decoder, DecoderConfig
from lab.model.generate import greedy
from lab.model.huggingface.pretrained import save_pretrained

SHAPES = {
    "demo": DecoderConfig(128, 2, 4, 4, 344, 600, tie_embeddings=False, theta=1000.0, embedding_std=1.0),
    "large": DecoderConfig(512, 6, 8, 8, 1376, 4096, tie_embeddings=False, embedding_std=1.0),
}
KINDS = ("prefill", "step", "whole", "stopping")
Generate = Callable[[Tensor, int, int | None], Tensor]
"""Continue prompts, (batch, length), by some new tokens, or up to a stop token."""


def generate_with(model: Any, prompts: Tensor, n_tokens: int, stop_id: int | None) -> Tensor:
    """Generate with transformers: greedy, with its key cache."""
    with torch.no_grad():
        out: Tensor = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=n_tokens,
            do_sample=False,
            use_cache=True,
            eos_token_id=stop_id,
            pad_token_id=0 if stop_id is None else stop_id,
        )
    return out[:, prompts.shape[1] :]


def in_transformers(decoder: Decoder) -> Any:
    """Load the same weights with transformers."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(decoder, Path(folder) / "model", train_len=8192)
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def build_sides(shape: str, device: torch.device, dtype: torch.dtype) -> dict[str, Generate]:
    """Build a model with random weights, and both ways to generate with it."""
    decoder = Decoder(SHAPES[shape], seed=0).eval()
    theirs = in_transformers(decoder).to(device, dtype)
    return {"ours": partial(greedy, decoder.to(device, dtype)), "theirs": partial(generate_with, theirs)}


def measure(sides: dict[str, Generate], prompts: Tensor, n_tokens: int, turns: int) -> record.Figures:
    """Time both sides in turns."""
    stop_id = int(sides["ours"](prompts, n_tokens, None).flatten().mode()[0])
    calls, answers = {}, []
    for side, generate in sides.items():
        calls[f"prefill {side}"] = partial(generate, prompts, 1, None)
        calls[f"whole {side}"] = partial(generate, prompts, n_tokens, None)
        calls[f"stopping {side}"] = partial(generate, prompts, n_tokens, stop_id)
        answers.append([cut(ids, stop_id) for ids in generate(prompts, n_tokens, stop_id).tolist()])
    seconds = {name: spent.wall_s for name, spent in in_turns(calls, prompts.device, turns).items()}
    for side in sides:
        both = zip(seconds[f"whole {side}"], seconds[f"prefill {side}"], strict=True)
        seconds[f"step {side}"] = [max(whole_s - prefill_s, 1e-9) / (n_tokens - 1) for whole_s, prefill_s in both]
    row: record.Figures = {}
    for kind in KINDS:
        row[f"{kind}_s"] = statistics.median(seconds[f"{kind} ours"])
        row[f"{kind}_ratio"] = ratio(seconds[f"{kind} theirs"], seconds[f"{kind} ours"])
    row["tests_per_s"] = len(prompts) / row["stopping_s"]
    row["same"] = statistics.mean(ours == theirs for ours, theirs in zip(*answers, strict=True))
    return row


def cut(ids: list[int], stop_id: int) -> list[int]:
    """Keep an answer up to its stop token."""
    return ids[: ids.index(stop_id)] if stop_id in ids else ids


def measure_shape(shape: str, options: argparse.Namespace, log: record.Log) -> None:
    """Measure all lengths and batches of a shape; every prompt differs from its first token on."""
    device = best_device()
    sides = build_sides(shape, device, getattr(torch, options.dtype))
    for length in map(int, options.lengths.split(",")):
        for batch in map(int, options.batches.split(",")):
            place = f"{shape:>9} {batch:>5} {length:>6}"
            if batch * length > options.most_tokens:
                print(f"{place} skipped: {batch * length:,} prompt tokens")
                continue
            generator = torch.Generator().manual_seed(length)
            prompts = torch.randint(SHAPES[shape].vocab_size, (batch, length), generator=generator).to(device)
            row = measure(sides, prompts, options.new_tokens, options.turns)
            sizes = {"subject": shape, "batch": batch, "length": length, "new_tokens": options.new_tokens}
            log.add(shape, f"{batch} x {length:,}", {"threads": options.threads, **sizes, **row})
            times = "".join(f" {1e3 * row[f'{kind}_s']:>8.2f}ms {row[f'{kind}_ratio']:>6.2f}" for kind in KINDS)
            print(f"{place}{times} {row['tests_per_s']:>8.2f} {row['same']:>5.2f}", flush=True)


def main() -> None:
    """Print the table."""
    grid = {"shapes": "demo,large", "lengths": "256,1024,4096", "batches": "1,8,100", "dtype": "float32"}
    options = record.read_options(__doc__, new_tokens=24, turns=5, most_tokens=30000, threads=1, **grid)
    torch.set_num_threads(options.threads)
    log = record.Log("generation", options.json)
    print(f"{heading(best_device())}, {options.dtype}, {options.new_tokens} new tokens")
    heads = "".join(f" {kind:>10} {'ratio':>6}" for kind in KINDS)
    print(f"{'model':>9} {'batch':>5} {'length':>6}{heads} {'tests/s':>8} {'same':>5}")
    for shape in options.shapes.split(","):
        measure_shape(shape, options, log)


if __name__ == "__main__":
    main()
