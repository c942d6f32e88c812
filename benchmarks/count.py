"""What counting costs: time of adding a micro-batch's segments against the time of training on it.

    python -m benchmarks.count [--json FILE]

The small step is the demo's model, whose time with and without counting is measured in turns as well: `on_to_off` is
the median of the turns' ratios and `noise` their median distance from it, below which it shows nothing. The share at
the 1.3B scale follows from 16,384-token packs at the throughput of one A100 that the paper's 28 days imply (1e12
tokens / 28 days / 16 GPUs = 25.8K tokens/s). Ids with gaps are counted for one sample of 32,768 ids; beside it stands
the step of an 8B model, the one that LongRecipe extends, on one A100 at half its 312 TFLOP/s: 6 FLOPs for each weight
and token.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks import record
from benchmarks.packed_attention import natural_lengths
from benchmarks.timing import in_turns, median_s
from lab.counts import PositionCounts
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder, DecoderConfig
from lab.skip.methods import SKIP_METHODS, skip_positions

REPEATS, SAMPLES, TURNS = 200, 20, 30
IDS = 32_768
A100_TOKENS_PER_S = 1e12 / (28 * 86400) / 16


def adding_s(window: int, lengths: list[int]) -> float:
    """Time one call of the counter, the median of many."""
    counts = PositionCounts(window)
    return median_s(lambda: counts.add_segments(lengths), torch.device("cpu"), REPEATS)


def gapped_s(method: str, target_len: int) -> float:
    """Time one call of the counter on a sample of IDS ids with gaps, the median of several samples."""
    generator, times = np.random.default_rng(0), []
    lengths = generator.integers(5, 40, IDS).cumsum()
    sentences = np.diff(np.append(lengths[lengths < IDS], IDS), prepend=0)
    for _ in range(SAMPLES):
        given = sentences if method == "longrecipe" else None
        ids = skip_positions(method, IDS, target_len=target_len, sentence_lengths=given, generator=generator)
        counts = PositionCounts(target_len)
        start = time.perf_counter()
        counts.add_runs([IDS], ids)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def on_and_off(tokens: int, lengths: list[int]) -> record.Figures:
    """Time forward and backward of the demo's model on one pack, with and without counting, in turns."""
    torch.set_num_threads(1)
    model = Decoder(DecoderConfig(128, 2, 4, 4, 344, 600, False))
    segments = Segments.from_lengths(lengths, tokens)
    batch = torch.randint(0, 600, (1, tokens))
    counts = PositionCounts(192)

    def step() -> None:
        model(batch, segments=segments, targets=batch).backward()

    def counted() -> None:
        step()
        counts.add_segments(lengths)

    seconds = in_turns({"on": counted, "off": step}, batch.device, TURNS)
    ratios = np.array(seconds["on"]) / np.array(seconds["off"])
    middle = float(np.median(ratios))
    noise = float(np.median(abs(ratios - middle)))
    return {"step_s": float(np.median(seconds["off"])), "on_to_off": middle, "noise": noise}


def shares(cost: float, step: float) -> record.Figures:
    """Return both times as figures."""
    return {"counting_s": cost, "step_s": step, "share": cost / step}


def main() -> None:
    """Print the shares."""
    log = record.Log("count", record.parser_of(__doc__).parse_args().json)
    demo = natural_lengths(1024, 192)
    cost, turns = adding_s(192, demo), on_and_off(1024, demo)
    step = turns["step_s"]
    print(f"demo, 1,024 tokens:        {cost * 1e6:6.1f} us of {step * 1e3:6.1f} ms: {cost / step:.4%}")
    print(f"demo, on against off: {turns['on_to_off'] - 1:+.4%}, noise {turns['noise']:.4%}")
    log.add("demo", figures={**shares(cost, step), **turns})
    large = natural_lengths(16_384, 2048)
    cost, step = adding_s(2048, large), 16_384 / A100_TOKENS_PER_S
    print(f"1.3B on A100, 16,384 tokens: {cost * 1e6:4.1f} us of {step * 1e3:6.1f} ms: {cost / step:.4%}")
    log.add("1.3B", figures=shares(cost, step))
    step = IDS * 6 * 8.0e9 / (0.5 * 312e12)
    for method in SKIP_METHODS:
        for target_len in (80_000, 131_072):
            cost = gapped_s(method, target_len)
            share = f"{cost * 1e3:6.2f} ms of {step:.1f} s: {cost / step:.4%}"
            print(f"{method}, {IDS:,} ids below {target_len:,}: {share}")
            log.add(method, f"{target_len:,}", shares(cost, step))


if __name__ == "__main__":
    main()
