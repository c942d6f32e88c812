"""Training speed of the lab, litgpt and transformers' Llama, in turns: tokens per CPU-second and per second.

    pip install --no-deps 'litgpt==0.5.13'    (its requirements exclude the huggingface-hub of transformers)
    python -m benchmarks.train [--sides ours,ours+compile,litgpt,litgpt+compile,transformers,transformers+compile]
        [--sizes 4M] [--windows 256] [--packs 4096] [--dtypes float32,bfloat16] [--device cpu|cuda] [--threads 1]
        [--rounds 7] [--steps 1] [--warm_up 2] [--json FILE]

Growth curves, over windows, packs and sizes; `--packs window` gives every window a pack of its own length:

    python -m benchmarks.train --sides ours,ours+compile --device cuda --dtypes bfloat16 --sizes 1.5B
        --windows 2048,4096,8192,16384,32768 --packs 32768
    python -m benchmarks.train --sides ours --dtypes float32 --rounds 1 --warm_up 1
        and one of: --windows 2048,4096,8192,16384,32768 --packs window
                    --packs 1024,2048,4096,8192,16384,32768
                    --sizes 25M,94M,336M,1.5B --windows 512 --packs 512

A step is what every trainer computes: forward pass, loss, backward pass, clipping, fused AdamW, on rows of `window`
tokens that fill a pack. The lab takes the rows as one packed row, as its runs do. It computes bfloat16 as they do: on a
GPU in bfloat16 weights, sharded over this process alone, otherwise under autocast, as the peers do. `+compile`
compiles the lab's blocks one by one, and the peers' whole models. All have the same sizes and run in this process.

Sides take turns if all of them fit into memory; otherwise each is built, measured and freed before the next. A side
that cannot be built is skipped, with a line. The exit status is 1 if a side failed, or a cell has none that was
measured, and 2 for an unknown side. A round is --steps steps of each, figures are medians of the rounds, and a ratio
is the median of the rounds' ratios with its quartiles. Ratios are of CPU seconds on a CPU, of seconds on a GPU. `best`
is the fastest of the peers' sides. FLOPs per token are causal, as in the lab's own estimate; utilisation is their share
of a GPU's peak, and on a CPU of the speed of a large product in the same precision, measured first.
"""

import argparse
import importlib
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import record
from benchmarks.generation import in_transformers
from benchmarks.gpu.sizes import LARGE, SMALL
from benchmarks.gpu.training import new_decoder, release, shard_alone
from benchmarks.timing import Spent, best_device, heading, in_turns
from lab.config import load_experiment
from lab.config.sections import TrainConfig
from lab.model.attention import backends
from lab.model.attention.segments import Segments
from lab.model.config import DecoderConfig, OptimConfig
from lab.model.devices import Linear, peak_flops, total_memory

SIZES: dict[str, Callable[[], DecoderConfig]] = {
    "tiny": lambda: DecoderConfig(32, 1, 2, 1, 64, 128, tie_embeddings=False),
    "4M": lambda: DecoderConfig(256, 4, 8, 2, 704, 4096, tie_embeddings=False),
    "25M": lambda: DecoderConfig(256, 12, 8, 2, 704, 32_000, tie_embeddings=False),
    "94M": lambda: load_experiment(SMALL).model,
    "336M": lambda: DecoderConfig(1024, 24, 16, 4, 2816, 32_000, tie_embeddings=False),
    "TinyLlama": lambda: DecoderConfig(2048, 22, 32, 4, 5632, 32_000, tie_embeddings=False),
    "1.5B": lambda: load_experiment(LARGE).model,
}
LEARNING_RATE = 4e-4
BYTES = 20  # of a parameter: weight, gradient, AdamW's moments, and a quarter for all else
PRODUCT = 1024  # rows, features in and out of the product that measures a CPU


GRID = {"sizes": "4M", "windows": "256", "packs": "4096", "dtypes": "float32,bfloat16"}
SIDES = ("ours", "ours+compile", "litgpt", "litgpt+compile", "transformers", "transformers+compile")


@dataclass(frozen=True)
class Side:
    """A model and its mean loss on tokens and targets, both (rows, window)."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    autocast: bool


def ours(cfg: DecoderConfig, rows: int, window: int, device: torch.device, dtype: str, *, compiled: bool) -> Side:
    """Build the lab's decoder, compiled as `train.compile: true` does."""
    backend, _ = backends.choose_backend("auto", device, getattr(torch, dtype))
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

    return Side(decoder, loss, autocast=bf16 and not sharded)


def litgpt(cfg: DecoderConfig, window: int, device: torch.device, dtype: str, *, compiled: bool) -> Side:
    """Build litgpt's model with the loss of its pretraining recipe.

    Raises: Skipped if it is not installed.
    """
    try:
        theirs, losses = importlib.import_module("litgpt"), importlib.import_module("litgpt.utils")
    except ImportError as error:
        raise record.Skipped(f"{error}; pip install --no-deps 'litgpt==0.5.13'") from None
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

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        mean: Tensor = losses.chunked_cross_entropy(run(tokens), targets)
        return mean

    return Side(model, loss, autocast=dtype == "bfloat16")


def transformers(cfg: DecoderConfig, device: torch.device, dtype: str, *, compiled: bool) -> Side:
    """Build transformers' Llama.

    Raises: Skipped if it is not installed.
    """
    try:
        model = in_transformers(new_decoder(cfg, torch.device("cpu"))).to(device).train()
    except ImportError as error:
        raise record.Skipped(f"{error}; pip install -e '.[bench]'") from None
    run = torch.compile(model) if compiled else model

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = run(tokens, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Side(model, loss, autocast=dtype == "bfloat16")


@dataclass(frozen=True)
class Cell:
    """One point of a curve."""

    size: str
    window: int
    pack: int
    dtype: str

    def __str__(self) -> str:
        """Name it in tables."""
        return f"{self.size} {self.dtype} window {self.window:,} pack {self.pack:,}"


def stepper(side: Side, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """Build one side's training step, the same for all."""
    optimizer = torch.optim.AdamW(side.model.parameters(), lr=LEARNING_RATE, fused=True)
    device = batch[0].device.type

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=side.autocast):
            loss = side.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(side.model.parameters(), OptimConfig().clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def build(cell: Cell, name: str, device: torch.device) -> Callable[[], None]:
    """Build the step of a side.

    Raises: Skipped for a peer that is not installed.
    """
    cfg, rows = SIZES[cell.size](), cell.pack // cell.window
    torch.manual_seed(0)
    tokens = torch.randint(cfg.vocab_size, (rows, cell.window + 1), device=device)
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    compiled = name.endswith("+compile")
    if name.startswith("ours"):
        side = ours(cfg, rows, cell.window, device, cell.dtype, compiled=compiled)
    elif name.startswith("litgpt"):
        side = litgpt(cfg, cell.window, device, cell.dtype, compiled=compiled)
    else:
        side = transformers(cfg, device, cell.dtype, compiled=compiled)
    held = sum(p.numel() for p in side.model.parameters())
    assert held == cfg.n_parameters(), f"{name} has {held:,} parameters, not {cfg.n_parameters():,}"
    return stepper(side, batch)


def figures(cell: Cell, spent: Spent, each: int, device: torch.device, peak: float | None) -> record.Figures:
    """Compute one side's speed and utilisation."""
    cfg = SIZES[cell.size]()
    tokens, flops = cell.pack // cell.window * cell.window * each, cfg.flops_per_token_causal(cell.window)
    cpu, wall = (tokens / statistics.median(seconds) for seconds in (spent.cpu_s, spent.wall_s))
    speed = wall if device.type == "cuda" else cpu
    return {
        "parameters": cfg.n_parameters(),
        "flops_per_token_causal": flops,
        "tokens_per_cpu_s": cpu,
        "tokens_per_s": wall,
        "utilisation": None if peak is None else flops * speed / peak,
    }


def compared(ours: Spent, peer: Spent, device: torch.device) -> record.Figures:
    """Compute how many times a peer's seconds ours go into, with the quartiles of the rounds."""
    sides = (getattr(side, clock(device)) for side in (ours, peer))
    ratios = [b / a for a, b in zip(*sides, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {"ratio": middle, "low": low, "high": high}


def measure(cell: Cell, options: argparse.Namespace, device: torch.device, log: record.Log) -> bool:
    """Measure one cell, print its rows and record them; return whether a side was measured and none failed."""
    if cell.pack < cell.window or min(options.rounds, options.steps) < 1:
        reason = "measures nothing: a pack needs a window, and a side a round and a step; raise packs, rounds or steps"
        print(f"{cell}: {reason}", flush=True)
        log.add(str(cell), status="skipped", reason=reason)
        return False
    sides = options.sides.split(",")
    each = BYTES * SIZES[cell.size]().n_parameters()
    groups = [sides]
    if each * len(sides) > total_memory(device):
        groups = [[name] for name in sides]
    peak = peak_of(device, cell.dtype)
    spent: dict[str, Spent] = {}
    failed = False
    for group in groups:
        outcomes = measure_group(cell, group, options, device)
        release()
        for name, outcome in outcomes.items():
            if outcome["status"] != "ok":
                print(f"{cell}: {name}: {outcome['reason']}", flush=True)
                log.add(str(cell), name, **outcome)
                failed = failed or outcome["status"] == "failed"
                continue
            spent |= outcome["figures"]
            row = {"threads": options.threads, **figures(cell, spent[name], options.steps, device, peak)}
            share = f"{row['utilisation']:6.1%}" if row["utilisation"] else "     -"
            speeds = f"{row['tokens_per_cpu_s']:>12,.0f} {row['tokens_per_s']:>12,.0f} {share}"
            print(f"{cell!s:42} {name:21} {speeds} {row['flops_per_token_causal'] / 1e6:>10,.2f}", flush=True)
            log.add(str(cell), name, row)
    compare(cell, spent, device, log)
    return bool(spent) and not failed


def measure_group(
    cell: Cell, names: list[str], options: argparse.Namespace, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Measure sides in turns; return the outcome of each, whose figures are the times of all."""
    steps: dict[str, Callable[[], None]] = {}
    outcomes = {name: record.outcome_of(partial(add_step, steps, cell, name, device)) for name in names}
    if steps:
        turns = {"each": options.steps, "warm_up": options.warm_up}
        outcomes |= dict.fromkeys(steps, record.outcome_of(partial(in_turns, steps, device, options.rounds, **turns)))
    return outcomes


def add_step(steps: dict[str, Callable[[], None]], cell: Cell, name: str, device: torch.device) -> record.Figures:
    """Build a side that fits the device, and add its step to others.

    Raises: Skipped.
    """
    needs, has = BYTES * SIZES[cell.size]().n_parameters() / 2**30, total_memory(device) / 2**30
    if needs > has:
        raise record.Skipped(f"unmeasured: training takes some {needs:.0f} GiB, this machine has {has:.0f}")
    steps[name] = build(cell, name, device)
    return {}


def compare(cell: Cell, spent: dict[str, Spent], device: torch.device, log: record.Log) -> None:
    """Print and record the lab's sides against the fastest peer."""
    own = [name for name in spent if name.startswith("ours")]
    peers = [name for name in spent if name not in own]
    if not own or not peers:
        return
    best = min(peers, key=lambda name: statistics.median(getattr(spent[name], clock(device))))
    for name in own:
        row = {"best": best, **compared(spent[name], spent[best], device)}
        print(f"{cell}: {name} over {best}: {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})", flush=True)
        log.add(str(cell), f"{name} over the best peer", row)


def clock(device: torch.device) -> str:
    """Name the seconds that ratios are of."""
    return "wall_s" if device.type == "cuda" else "cpu_s"


def peak_of(device: torch.device, dtype: str) -> float | None:
    """Look up a GPU's operations per second, or measure a CPU's by its CPU seconds, the best of three."""
    if device.type == "cuda":
        return peak_flops(torch.cuda.get_device_name(device))
    layer, x = Linear(PRODUCT, PRODUCT, bias=False, dtype=getattr(torch, dtype)), torch.randn(PRODUCT, PRODUCT)
    x = x.to(layer.weight.dtype)
    with torch.no_grad():
        spent = in_turns({"product": lambda: layer(x)}, device, 3, warm_up=0)["product"]
    return 2 * PRODUCT**3 / min(spent.cpu_s)


def cells(options: argparse.Namespace) -> list[Cell]:
    """List the points that the command line asks for."""
    asked = []
    for size, window, pack, dtype in itertools.product(*(getattr(options, name).split(",") for name in GRID)):
        asked.append(Cell(size, int(window), int(window if pack == "window" else pack), dtype))
    return asked


def main() -> int:
    """Print the table and return the exit status."""
    own = {"sides": ",".join(SIDES), "device": best_device().type}
    options = record.read_options(__doc__, **own, **GRID, threads=1, rounds=7, steps=1, warm_up=2)
    if not set(options.sides.split(",")) <= set(SIDES):
        print(f"--sides={options.sides}: must be of {','.join(SIDES)}, with commas in between", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    device, log = torch.device(options.device), record.Log("train", options.json)
    print(f"{heading(device)}; a round is {options.steps} steps of each side, {options.rounds} rounds")
    print(f"{'':42} {'side':21} {'tokens/CPU-s':>12} {'tokens/s':>12} {'util.':>6} {'MFLOP/tok.':>10}")
    measured = [measure(cell, options, device, log) for cell in cells(options)]
    return 0 if all(measured) else 1


if __name__ == "__main__":
    raise SystemExit(main())
