"""What lab.watch adds to a training step of the demo, in turns with the same steps without it.

    python -m benchmarks.watch [--turns 60] [--threads 1] [--json FILE]

The model and its batch are those of configs/cpu_demo.yaml, in a plain loop of forward, backward and AdamW. A turn is 16
steps without a watcher (`bare`), 16 that count f (`f`), and 16 that count f and g (`f and g`), in changing order; the
thread counts 16 forwards at once. Seconds are CPU seconds of the process, with the watcher's thread, so that other work
on the machine counts as little as it can. `added` is the median of the turns' differences from `bare` over the median
of `bare`, with 95% limits of resampled turns. `own` is what the hook and the thread take by their own clocks, over
`bare`.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import lab
from benchmarks import record
from benchmarks.timing import heading, in_turns
from lab.config import load_experiment
from lab.data.tokenizer import train_bpe
from lab.integrations.counter import TOGETHER
from lab.model.decoder import Decoder
from lab.train.environment import ROOT

CONFIG = ROOT / "configs" / "cpu_demo.yaml"
CPU = torch.device("cpu")
RESAMPLES = 2000


class Demo:
    """The demo's model, its rows and their loop."""

    def __init__(self) -> None:
        experiment = load_experiment(CONFIG, {})
        corpus = experiment.data.corpus
        texts = [corpus.document(number) for number in range(1500)]
        tokenizer = train_bpe(texts, 600)
        ids = [token for text in texts for token in tokenizer.encode(text).ids]
        window = experiment.data.window
        rows = torch.tensor(ids[: len(ids) // window * window]).reshape(-1, window)
        self.batches = list(rows.split(experiment.train.batch_tokens // window))[:-1]
        self.model = Decoder(experiment.model).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step_number = 0

    def turn(self) -> None:
        """Train as many steps as the watcher counts at once."""
        for _ in range(TOGETHER):
            self.step()

    def step(self) -> None:
        """Train on the next rows."""
        tokens = self.batches[self.step_number % len(self.batches)]
        self.step_number += 1
        logits = self.model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Clocked:
    """A watcher whose hook is registered for single turns, with the CPU seconds of its own code."""

    def __init__(self, demo: Demo, **options: Any) -> None:
        self.demo = demo
        self.own_s = 0.0
        self.watch = lab.watch(demo.model, window=192, input="tokens", **options)
        self.watch.hook.remove()
        self.watch.counter.count = self.clocked(self.watch.counter.count)
        self.observe = self.clocked(self.watch.observe)

    def clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Add up the CPU seconds of the thread that calls."""

        def run(*arguments: Any, **named: Any) -> None:
            start = time.thread_time()
            call(*arguments, **named)
            self.own_s += time.thread_time() - start

        return run

    def turn(self) -> None:
        """Train a turn that is watched, and wait for the thread."""
        hook = self.demo.model.register_forward_pre_hook(self.observe, with_kwargs=True)
        self.demo.turn()
        hook.remove()
        self.watch.counter.wait()


def rows(turns: int) -> Iterator[tuple[str, record.Figures]]:
    """Run the turns, and compare each watcher with the bare steps."""
    demo = Demo()
    watched = {"f and g": Clocked(demo)}
    run: dict[str, Callable[[], None]] = {"bare": demo.turn}
    run |= {name: clocked.turn for name, clocked in watched.items()}
    in_turns(run, CPU, 1, warm_up=0)
    for clocked in watched.values():
        clocked.own_s = 0.0
    seconds = {name: np.array(spent.cpu_s) for name, spent in in_turns(run, CPU, turns, warm_up=0).items()}
    bare = seconds["bare"]
    picks = np.random.default_rng(0).integers(0, turns, (RESAMPLES, turns))
    for name, clocked in watched.items():
        added = seconds[name] - bare
        resampled = np.median(added[picks], 1) / np.median(bare[picks], 1)
        low, high = np.quantile(resampled, [0.025, 0.975])
        figures = {"added": np.median(added) / np.median(bare), "low": low, "high": high}
        figures |= {"own": clocked.own_s / bare.sum(), "own_s": clocked.own_s / turns / TOGETHER}
        figures["step_s"] = np.median(bare) / TOGETHER
        yield name, {key: float(value) for key, value in figures.items()} | {"turns": turns}


def main() -> None:
    """Print the shares."""
    options = record.read_options(__doc__, turns=60, threads=1)
    torch.set_num_threads(options.threads)
    log = record.Log("watch", options.json)
    print(heading(CPU))
    for name, figures in rows(options.turns):
        print(f"{name}:", ", ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)
        log.add("demo", name, {"threads": options.threads, **figures})


if __name__ == "__main__":
    main()
