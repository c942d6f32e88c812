"""Updates of a run on one GPU: the data, strategy and loop that `lab.fit` assembles, with random weights.

An update accumulates over MICRO_BATCHES packs. A micro-batch is timed where no update precedes or follows it; what an
update takes beyond its micro-batches is its own: gathering, reducing, clipping and AdamW. Times are those of the
device, at the starts of the micro-batches, which the host does not wait for. Nothing is written.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.gpu.sizes import Options, Settings
from benchmarks.timing import wait
from lab.config import Experiment, load_experiment
from lab.data import synthetic
from lab.data.config import Synthetic
from lab.data.tokenizer import EOS, train_bpe
from lab.model.attention.backends import choose_for
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.devices import choose_compile, peak_flops, utilisation
from lab.model.sharding import Sharding, shard
from lab.positions import frequencies
from lab.train.loop import profile
from lab.train.run import assemble, mesh_of, set_up
from lab.train.starting import Start
from lab.train.state import TrainState

WARM_UP = 1  # updates, of MICRO_BATCHES packs each
MICRO_BATCHES = 8
DOCUMENTS = 200  # that the tokenizer is trained on


def new_decoder(cfg: DecoderConfig, device: torch.device, **options: Any) -> Decoder:
    """Build a decoder with random weights."""
    rope = frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta)
    return drawn(lambda seed: Decoder(cfg, frequencies=rope, seed=seed, **options), device)


def drawn(make: Callable[[int | None], Decoder], device: torch.device) -> Decoder:
    """Build a decoder and draw its weights on the device, as a CPU would take longest of all for it."""
    with torch.device("meta"):
        decoder = make(None)
    decoder.to_empty(device=device)
    if decoder.cfg.tie_embeddings:  # leaving the meta device parts them
        decoder.head.weight = decoder.embedding.weight
    torch.manual_seed(0)
    for parameter in decoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=decoder.cfg.d_model**-0.5 / 2)
        else:
            torch.nn.init.ones_(parameter)
    return decoder


def shard_alone(decoder: Decoder, device: torch.device) -> None:
    """Shard a decoder over this process alone, as a run in bf16 on one GPU does."""
    if not distributed.is_initialized():
        store = distributed.HashStore()  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    shard(decoder, init_device_mesh(device.type, (1,)), Sharding(torch.bfloat16, whole=True))


class Updates:
    """Marks the starts of micro-batches and the end of the last, after the warm-up, and notes the losses of steps."""

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.marks: list[Any] = []
        self.losses: list[float] = []
        self.consumed = 0  # tokens of the warm-up
        self.compiled = 0  # graphs until then
        self.n_packs = 0

    def step(self) -> None:
        """Mark the time after a pack, which is the start of the next one; after the last pack wait for the device."""
        state = self.state
        self.n_packs += 1
        if self.n_packs % MICRO_BATCHES == 0 and state.last is not None:
            self.losses.append(state.last.sums["loss"] / state.last.sums["targets"])
        if self.n_packs < WARM_UP * MICRO_BATCHES:
            return
        if not self.marks:
            wait(state.device)
            if state.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self.consumed, self.compiled = state.consumed, graphs()
        self.marks.append(mark(state.device))
        if state.is_finished:
            wait(state.device)


def mark(device: torch.device) -> Any:
    """Return the time on a CPU, or an event that a GPU will give its time to."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_of(marks: Sequence[Any]) -> list[float]:
    """Return the seconds from the first mark to each."""
    if isinstance(marks[0], float):
        return [at - marks[0] for at in marks]
    return [marks[0].elapsed_time(event) / 1e3 for event in marks]


def apart(times: Sequence[float], packs: int) -> tuple[float, float]:
    """Return the seconds of a micro-batch, and those of an update beyond its micro-batches, both medians.

    `times` are the starts of the micro-batches, `packs` of them an update, and the end of the last.
    """
    spent = [end - start for start, end in pairwise(times)]
    updates = [spent[at : at + packs] for at in range(0, len(spent), packs)]
    micro_s = statistics.median(one for update in updates for one in update[1:-1])
    return micro_s, statistics.median(map(sum, updates)) - packs * micro_s


def measure(
    options: Options, config: Path, settings: Settings | None = None, *, updates: int | None = None
) -> dict[str, Any]:
    """Train a run of a config for some updates after a warm-up, and measure.

    Raises: LabError for what cannot run here.
    """
    release()
    experiment = experiment_of(options, config, settings, updates)
    run = assemble(Start(experiment), writes=False)
    run.connect()
    fabric, recipe = run.fabric, run.recipe
    decoder = drawn(recipe.make, fabric.device)
    if (mesh := mesh_of(fabric)) is not None:
        shard(decoder, mesh, recipe.sharding)
    state = set_up(recipe, fabric, decoder)
    watch = Updates(state)
    profile(run, state, watch, experiment.train.steps * experiment.train.accumulation)
    return figures(experiment, watch, state)


def experiment_of(
    options: Options, config: Path, settings: Settings | None = None, updates: int | None = None
) -> Experiment:
    """Build the run that is measured."""
    own = options.size.large_settings(config, {"run.name": "steps", **places(options), **(settings or {})})
    batch = MICRO_BATCHES * load_experiment(config, own).train.micro_batch_tokens
    length = {"train.batch_tokens": batch, "train.tokens": (WARM_UP + (updates or options.size.updates)) * batch}
    return load_experiment(config, own | length)


def figures(experiment: Experiment, watch: Updates, state: TrainState) -> dict[str, Any]:
    """Compute what a table shows of a run."""
    device, tokens = state.device, state.consumed - watch.consumed
    train, model, window = experiment.train, experiment.model, experiment.data.window
    times = seconds_of(watch.marks)
    micro_s, update_s = apart(times, MICRO_BATCHES)
    tokens_per_s = tokens / times[-1]
    on_gpu = device.type == "cuda"
    peak = peak_flops(torch.cuda.get_device_name() if on_gpu else None)
    return {
        "micro_batch_ms": 1e3 * micro_s,
        "update_ms": 1e3 * update_s,
        "tokens_per_s": tokens_per_s,
        "mfu": utilisation(model.flops_per_token_causal(window), tokens_per_s, peak, 1),
        "mfu_full": utilisation(model.flops_per_token_full(window), tokens_per_s, peak, 1),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "backend": choose_for(train.backend, device, model.head_dim, bf16=train.bf16)[0],
        "strategy": train.resolved_strategy(on_gpu),
        "compiled": choose_compile(train.compile, device)[0],
        "recompute": train.recompute,
        "window": window,
        "pack_tokens": train.micro_batch_tokens,
        "micro_batches": train.accumulation,
        "updates": len(watch.marks) // MICRO_BATCHES,
        "parameters": model.n_parameters(),
        "recompilations": graphs() - watch.compiled,
        "first_loss": watch.losses[0],
        "last_loss": watch.losses[-1],
    }


def release() -> None:
    """Free what the run before has left: its model refers to itself, its process group and port would outlive it."""
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    os.environ.pop("MASTER_PORT", None)
    torch.cuda.empty_cache()


def graphs() -> int:
    """Count the graphs that torch.compile has compiled in this process; none before anything loads the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def places(options: Options) -> Settings:
    """Return the settings of the folders, and of a small tokenizer, for the real one cannot be shipped.

    The model keeps its full vocabulary.
    """
    path = options.work / "tokenizer" / "tokenizer.json"
    if not path.exists():
        generator = Synthetic(median_tokens=532.48, section_tokens=2048.0)
        documents = map(generator.document, range(DOCUMENTS))
        probe = synthetic.TASK + synthetic.NEEDLE + synthetic.QUESTION + synthetic.ANSWER_PREFIX
        path.parent.mkdir(parents=True, exist_ok=True)
        train_bpe([probe, *documents], vocab_size=640).save(str(path))
    return {
        "run.folder": str(options.work / "runs"),
        "data.folder": str(options.work / "shards"),
        "data.tokenizer.path": str(path),
        "data.tokenizer.eos": EOS,
    }
