"""One run: assemble its parts; train, or profile a few steps; print what it found."""

import logging
import signal
import threading
import warnings
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.strategies.strategy import Strategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.distributed.device_mesh import DeviceMesh

from lab.config import Experiment
from lab.core.command import EXIT_FAILURE, EXIT_STOPPED, show
from lab.core.errors import ConfigError, first_line
from lab.core.launch import TIMEOUT, Launch, find_launch, set_threads
from lab.core.startup import take_signals
from lab.data.module import PackedData
from lab.data.preparation import check_prepared
from lab.loading import decoder_builder, start_from
from lab.model.attention.backends import choose_for
from lab.model.attention.segments import ContextGroup
from lab.model.decoder import Decoder, make_optimizer
from lab.model.devices import choose_compile, device_for, inductor
from lab.model.sharding import Sharding, build
from lab.probe.effective_distance import build_distance_probe
from lab.probe.reach import format_limits, format_reach, shown_length
from lab.runs.folder import RunFolder
from lab.runs.recovery import is_run_finished
from lab.train.agreement import check_shared, end_together, gather, start_together
from lab.train.checkpoint import Checkpointing
from lab.train.loop import LoopParts, profile, train
from lab.train.probe import Probing, check_haystack, check_tests, make_needle_probe
from lab.train.record import Recording
from lab.train.starting import Start, check_data, check_kernels, find_base, find_resume, own_run, start_folder
from lab.train.state import ModelRecipe, Stopping, TrainState


@dataclass(eq=False)
class Assembled(LoopParts):
    """The parts of one run, before its processes meet and its decoder is built."""

    recipe: ModelRecipe
    state: TrainState = field(init=False)  # once it is built

    def fit(self) -> None:
        """Build the decoder, restore the checkpoint that the run resumes from, and train."""
        stopping = self.stopping
        with stopping.ending_ranks():
            self.build()
            self.saving.open(self.state)
            # Until here a signal ends the process: there is nothing to save yet.
            with stopping.handling():
                # No process group is made behind this exchange: its ranks would wait for each other in C++.
                if is_started := start_together(stopping.launch, lambda: stopping.is_asked):
                    train(self, self.state)
            if not is_started and stopping.signals is not None:
                stopping.signals.act(signal.SIGTERM)

    def profile(self, profiler: torch.profiler.profile, n_packs: int) -> None:
        """Build the decoder and train on some packs, of which nothing is written."""
        with self.stopping.ending_ranks():
            self.build()
            profile(self, self.state, profiler, n_packs)

    def connect(self) -> None:
        """Let the processes meet, and open the data."""
        self.fabric.launch()
        # The nodes may share a folder of shards or have one each: one process of each prepares what is missing there.
        launch = self.stopping.launch
        if launch.local_rank == 0:
            self.data.prepare_data()
        self.fabric.barrier()
        self.data.setup(launch.rank, launch.world_size)

    def build(self) -> None:
        """Connect, and build the decoder, the same on every rank."""
        self.connect()
        recipe = self.recipe
        decoder = build(recipe.make, recipe.seed, recipe.start, mesh=mesh_of(self.fabric), sharding=recipe.sharding)
        self.state = set_up(recipe, self.fabric, decoder)


def mesh_of(fabric: Fabric) -> DeviceMesh | None:
    """Return the mesh of all ranks that a decoder is sharded over, if the strategy shards it."""
    strategy = fabric.strategy
    return strategy.device_mesh["data_parallel"] if isinstance(strategy, ModelParallelStrategy) else None


def set_up(recipe: ModelRecipe, fabric: Fabric, decoder: Decoder) -> TrainState:
    """Wrap a decoder and its optimizer for the strategy; a sharded one is on its device already."""
    context = ContextGroup.create(recipe.train.context_parallel)
    model = fabric.setup_module(decoder, move_to_device=mesh_of(fabric) is None)
    optimizer = fabric.setup_optimizers(make_optimizer(decoder, recipe.optim))
    return TrainState(recipe, decoder, model, optimizer, context)


def run_experiment(
    experiment: Experiment, resume: bool, command: str, *, restart: bool = False, started: threading.Event | None = None
) -> int:
    """Train, record and report, as the only process that writes to the run folder; return the exit status.

    A process that exits afterwards passes `started`, which is set after the first step; it ignores signals from the end
    of the training on. `command` continues the run.

    Raises: LabError for what the user can correct.
    """
    launch = find_launch(experiment.train.devices, experiment.train.nodes)
    with own_run(experiment) if launch.is_first else nullcontext():
        check_shared(experiment, launch)
        start = find_base(
            Start(experiment, launch, None if restart else find_resume(experiment, launch, resume=resume))
        )
        probes, steps = experiment.probe is not None, experiment.train.steps
        ended = launch.is_first and is_run_finished(start.folder, start.checkpoint, steps, probes=probes)
        # All ranks take what the first one reads: whether nothing is left to train or probe.
        if gather("finished", "yes" if ended else "", launch)[0]:
            if launch.is_first:
                show(f"{experiment.run.path}: already finished; choose another --run.name to train again")
            end_together(launch)
        else:
            run = prepare_run(start, resume=resume, restart=restart)
            run.stopping.started = started
            if started is not None and launch.by_torchrun:
                run.stopping.signals = take_signals()
            if status := train_to_end(run, launch, command):
                return status
        if launch.is_first:
            show(format_report(start.folder))
    return 0


def prepare_run(start: Start, *, resume: bool, restart: bool) -> Assembled:
    """Check all that a run depends on, and write the files that describe it, before it trains. A collective call."""
    experiment, launch = start.experiment, start.launch
    probes = experiment.probe is not None
    # A sum depends on the number of threads in its last digits, so that a resumed run takes those it began with.
    threads = set_threads(experiment.train.threads or (start.folder.threads() if resume else None), launch)
    run = assemble(start)
    check_prepared(experiment.data)
    data = run.data
    if launch.is_first:
        data.prepare_data(partial(check_tests, experiment) if probes else None)
    check_data(data, launch, is_resumed=start.checkpoint is not None)
    if launch.is_first:
        if probes and start.checkpoint is None:  # what no probe can test leaves no folder
            build_distance_probe(make_needle_probe(experiment, device_for("cpu")))
        start_folder(start, data, threads, restart=restart)
        check_haystack(experiment)
    gather("written", "", launch)
    return run


def train_to_end(run: Assembled, launch: Launch, command: str) -> int:
    """Train, close the records, and return the exit status: not 0 after a stop, which prints its reason."""
    stopping = run.stopping
    is_complete = False
    try:
        run.fit()
        is_complete = not stopping.stopped
    finally:
        run.recording.close(finished=is_complete)
    if is_complete:
        return 0
    if launch.is_first:
        saved = f"stopped after {run.state.consumed:,} tokens, all saved; continue with:\n  {command}"
        show(stopping.error or saved, error=True)
    # torchrun ends the processes that are left once one has exited, the first rank perhaps before it has printed.
    with suppress(RuntimeError):  # one of them has died, after all is saved
        run.fabric.barrier()
    return EXIT_FAILURE if stopping.error else EXIT_STOPPED


def profile_experiment(experiment: Experiment, folder: Path | None) -> int:
    """Write a table and a trace of where time goes, to RUN/profile if nowhere else; return the exit status.

    It covers the pack before an update, the pack with it and the one after it. Nothing else is written.

    Raises: ConfigError for a run that has fewer packs.
    """
    # The second update, since the first one creates AdamW's moments and opens connections between ranks. Two packs
    # come first, to compile and to start the profiler.
    train = experiment.train
    update = max(4, 2 * train.accumulation)
    if train.steps * train.accumulation <= update:
        raise ConfigError(
            experiment.format_error(
                "train.tokens", f"--profile needs more than {update} packs on each process; raise it"
            )
        )
    path = folder or experiment.run.path / "profile"
    launch = find_launch(train.devices, train.nodes)
    set_threads(train.threads, launch)
    run = assemble(Start(experiment, launch), writes=False)
    check_prepared(experiment.data)
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=update - 3, warmup=1, active=3, repeat=1),  # packs
        on_trace_ready=torch.profiler.tensorboard_trace_handler(str(path), f"profile-{launch.rank}"),
    ) as profiler:
        run.profile(profiler, update + 1)
    end_together(launch)
    name = "fit-profile.txt" if launch.is_first else f"fit-profile-{launch.rank}.txt"
    (path / name).write_text(profiler.key_averages().table(f"{run.state.device.type}_time_total", row_limit=25))
    if launch.is_first:
        show(f"profile: {path}; open its trace in ui.perfetto.dev")
    return 0


def assemble(start: Start, *, writes: bool = True) -> Assembled:
    """Build everything a run needs but its decoder; training resumes from the checkpoint of `start` if it has one.

    A run that does not write keeps nothing in its folder, such as a copy of what selects sentences.

    Raises: LabError if this machine cannot run it.
    """
    for name in ("lightning.fabric", "lightning.pytorch"):  # which log for Fabric, too
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (".*isinstance.treespec.*", ".*torch.distributed is disabled.*"):  # not for users to change
        warnings.filterwarnings("ignore", message=message)
    experiment = start.experiment
    check_kernels(experiment, start.launch)
    train = experiment.train
    device = device_for(train.accelerator, "train.accelerator")
    on_gpu = device.type == "cuda"
    strategy = train.resolved_strategy(on_gpu)
    try:
        fabric = Fabric(
            accelerator="gpu" if on_gpu else "cpu",
            devices=train.devices,
            num_nodes=train.nodes,
            strategy=make_strategy(strategy, train.world_size),
            precision="32-true",  # TrainState.precision and FSDP2 choose the dtype
            plugins=[TorchElasticEnvironment() if start.launch.by_torchrun else LightningEnvironment()],
        )
    except MisconfigurationException as error:
        raise ConfigError(
            f"train.accelerator={train.accelerator}, train.devices={train.devices}: {first_line(error)}; use the "
            "devices of this machine"
        ) from error
    # The run folder has its own copy of what selects sentences, which a resume must read even if the original changed.
    data = PackedData(experiment, start.folder.token_types if writes and experiment.reads_token_types else None)
    recording = Recording(experiment, data, start.launch)
    stopping = Stopping(start.launch)
    saving = Checkpointing(start, data, recording, stopping)
    return Assembled(
        fabric,
        data,
        recording,
        stopping,
        saving,
        Probing(recording, stopping, saving),
        make_recipe(experiment, device, strategy, trained=start.checkpoint is not None),
    )


def make_recipe(experiment: Experiment, device: torch.device, strategy: str, *, trained: bool) -> ModelRecipe:
    """Choose how the decoder is built, which starts from other weights unless it has been `trained`."""
    train = experiment.train
    start = None
    if experiment.start is not None and not trained:
        start = partial(start_from, path=Path(experiment.start.path))
    make = decoder_builder(
        experiment,
        backend=choose_for(train.backend, device, experiment.model.head_dim, bf16=train.bf16)[0],
        recompute=train.recompute,
        compiler=inductor if choose_compile(train.compile, device)[0] else None,
    )
    whole = train.keeps_whole(experiment.model.n_parameters())
    return ModelRecipe(
        make,
        experiment.optim,
        train,
        seed=experiment.run.seed,
        sharding=Sharding(torch.bfloat16 if train.bf16 else None, train.sharded_over, whole),
        start=start,
        autocasts=train.bf16 and strategy != "fsdp",
    )


def make_strategy(strategy: str, world_size: int) -> Strategy | str:
    """Make Fabric's strategy."""
    if strategy == "fsdp":
        # Fabric would call this function to shard a decoder. The lab has sharded it before it allocated any weight.
        return ModelParallelStrategy(lambda decoder, mesh: decoder, world_size, tensor_parallel_size=1, timeout=TIMEOUT)
    if strategy == "ddp":
        # A view of DDP's buckets saves a second copy of all gradients.
        return DDPStrategy(gradient_as_bucket_view=True, timeout=TIMEOUT)
    return "auto"


def format_report(folder: RunFolder) -> str:
    """Format the results: reach and effective length by tokens, or the loss of a run without probes, and the folder."""
    last = deque(folder.records("metrics.jsonl"), maxlen=1)
    if last and not any(folder.probes()):
        mean = "-" if last[0]["loss"] is None else f"{last[0]['loss']:.3f}"
        return f"\nloss {mean} after {last[0]['consumed_tokens']:,} tokens, no probes\n\neverything is in {folder.path}"
    row = "{:>15} {:>14} {:>16} {:>16} {:>5} {:>9}".format
    lines = ["", row("consumed tokens", "reach", "95% limits", "effective length", "loss", "bits/byte")]
    for probe in folder.probes():
        losses = []
        for name in ("held_out_loss", "bits_per_byte"):
            losses.append("" if probe.get(name) is None else f"{probe[name]:.3f}")
        lines.append(
            row(
                f"{probe['consumed_tokens']:,}",
                format_reach(probe).removeprefix("reach ").partition(", ")[0],
                format_limits(probe) if "reach_low" in probe else "-",
                shown_length(probe["effective_length"], probe.get("first_length")),
                *losses,
            )
        )
    lines.append(
        "\nreach is the distance of one hidden number, effective length is of prompts with several, in tokens;"
    )
    lines.append("loss, in nats per token, and bits/byte are of held-out text")
    return "\n".join([*lines, f"\neverything is in {folder.path}"])
