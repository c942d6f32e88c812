"""What surrounds a training step on a CPU: Lightning's loop, counting and the whole run, each beside a bare loop.

    python -m benchmarks.loops [--steps 300] [--each 10] [--threads 1] [--json FILE]

The model, packs and optimizer are those of configs/cpu_short.yaml. A run of the trainer stops after every --each steps,
and a plain loop over a second copy of the same module and data does as many; both are CPU seconds of this process, so
that other work on the machine counts as little as it can. `ratio` is the bare loop's seconds over the trainer's, in all
turns together: 1 is a trainer that costs nothing. `lightning` has no callbacks; `run` has those of a run, with its
records, counts and checkpoints, but no probe, whose cost benchmarks.probe measures; `counting` is the share of the
run's seconds that its counting callback takes, with the totals that records and checkpoints read, over all steps after
the first turns: 0 is counting that costs nothing.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from benchmarks import record
from benchmarks.timing import heading
from lab.command import parse_overrides
from lab.config import load_experiment
from lab.data.module import PackedData
from lab.train.environment import ROOT
from lab.train.session import Assembled, assemble
from lab.train.starting import Start
from lab.train.step import Training

CONFIG = ROOT / "configs" / "cpu_short.yaml"
WARM_UP = 2  # turns that are not counted
SETTINGS = (
    "--train.precision=fp32",
    "--data.corpus.documents=4000",
    "--train.checkpoint_every_tokens=131072",
    "--optim.warmup_steps=1",
    "--probe.every_tokens=null",
    "--probe.tests=1",
    "--probe.max_length=192",
    "--probe.distance_tests=0",
    "--probe.distance_points=null",
    "--probe.loss_tokens=0",
)


def bare_steps(module: Training, data: PackedData) -> Iterator[None]:
    """Train without a trainer, one step at a time."""
    module.configure_model()
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    data.setup("fit")
    for number, batch in enumerate(data.train_dataloader()):
        module.training_step(batch, number).backward()
        module.configure_gradient_clipping(optimizer)
        optimizer.step()
        module.read_stats(optimizer.param_groups[0]["lr"])
        schedule.step()
        optimizer.zero_grad()
        yield


class Turns(Callback):
    """Runs the bare loop after so many steps of the trainer; the last of the callbacks."""

    def __init__(self, bare: Iterator[None], each: int) -> None:
        self.bare, self.each = bare, each
        self.trainer_s: list[float] = []
        self.bare_s: list[float] = []
        self.since = 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure both, once in so many steps."""
        if (batch_idx + 1) % self.each:
            return
        start = time.process_time()
        for _ in range(self.each):
            next(self.bare)
        self.trainer_s.append(start - self.since)
        self.bare_s.append(time.process_time() - start)
        self.since = time.process_time()

    def figures(self) -> record.Figures:
        """Compare the seconds after the warm-up; the quartiles are those of the turns."""
        own, bare = self.trainer_s[WARM_UP:], self.bare_s[WARM_UP:]
        low, _, high = statistics.quantiles([b / a for a, b in zip(own, bare, strict=True)], n=4, method="inclusive")
        step_s = sum(own) / len(own) / self.each
        return {"ratio": sum(bare) / sum(own), "low": low, "high": high, "step_s": step_s, "turns": len(own)}


def built(place: Path, name: str, steps: int) -> Assembled:
    """Assemble a run of the demo with its packs prepared."""
    folders = (f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", f"--run.name={name}")
    words = [*SETTINGS, *folders, f"--train.tokens={(steps + 1) * 1024}"]  # the last, with the probe, is not measured
    experiment = load_experiment(CONFIG, parse_overrides(words))
    experiment.run.path.mkdir(parents=True)
    run = assemble(Start(experiment))
    run.data.prepare_data()
    return run


def measured(run: Assembled, other: Assembled, trainer: lightning.Trainer, each: int) -> record.Figures:
    """Train with the trainer, and in turns with a bare loop on the other run's module."""
    turns = Turns(bare_steps(other.module, other.data), each)
    trainer.callbacks.append(turns)  # type: ignore[attr-defined]
    trainer.fit(run.module, datamodule=run.data)
    return turns.figures()


def plain_trainer(steps: int) -> lightning.Trainer:
    """Build Lightning's trainer without callbacks."""
    return lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Add up a hook's CPU seconds."""

    def run(*arguments: Any, **named: Any) -> Any:
        start = time.process_time()
        result = call(*arguments, **named)
        spent.append(time.process_time() - start)
        return result

    return run


def rows(place: Path, options: argparse.Namespace) -> Iterator[tuple[str, record.Figures]]:
    """Measure Lightning's loop, then the whole run and the counting in it."""
    steps, each = options.steps, options.each
    first, second, third, fourth = (built(place, name, steps) for name in ("first", "second", "third", "fourth"))
    yield "lightning", measured(first, second, plain_trainer(steps + 1), each)
    counting: list[float] = []
    own = third.recording.counting
    for method in ("add", "total"):
        setattr(own, method, timed(getattr(own, method), counting))
    whole = measured(third, fourth, third.trainer, each)
    yield "run", whole
    count_s = sum(counting[WARM_UP * each :]) / (steps - WARM_UP * each)
    yield "counting", {"share": count_s / whole["step_s"], "counting_s": count_s}


def main() -> None:
    """Print the ratios."""
    parser = record.parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    log = record.Log("loops", options.json)
    print(heading(torch.device("cpu")))
    with tempfile.TemporaryDirectory() as place:
        for name, figures in rows(Path(place), options):
            print(f"{name}:", ", ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)
            log.add("demo", name, {"threads": options.threads, **figures})


if __name__ == "__main__":
    main()
