"""Where a run starts: at step 0, a checkpoint, or not at all; the files that a start writes first; what it prints.

Under optim.schedule wsd and constant the steps before the decay are those of runs of any length. A checkpoint after k
steps has saved lr(k), the rate of its next step. It is one of a run of S steps with rates lr' if

    k <= S and lr(k) = lr'(k)

because rates are optim.lr up to the decay and fall linearly in it, and lines that end at two steps do not meet before.
"""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch.nn.attention import current_flash_attention_impl

from lab.config import Experiment, load_experiment
from lab.config.experiment import digest_of_run, find_changes
from lab.core import files, locks
from lab.core.command import show
from lab.core.errors import CheckpointError, ConfigError, DiskError
from lab.core.launch import Launch
from lab.core.plugins import KEPT as PLUGINS
from lab.data.derivation import hash_manifests
from lab.data.module import PackedData
from lab.data.preparation import shard_folder, summarise
from lab.data.selecting import read_token_types, result_file
from lab.data.text_files import read_texts
from lab.data.tokenizer import TOKENIZER, load_tokenizer, n_ids
from lab.model import devices
from lab.model.attention.backends import choose_for
from lab.positions.rope import base_warning
from lab.probe.needles import KEPT, text_to_keep
from lab.runs.checkpoints import (
    CONSUMED,
    RESTORE,
    TEMPORARY,
    TENSORS,
    UNTRAINED,
    Checkpoint,
    candidates,
    drop_from_manifest,
    find_error,
    is_untrained,
    newest,
    open_checkpoint,
    reject,
)
from lab.runs.folder import RunFolder
from lab.runs.recovery import find_losses, reaches, read_state
from lab.runs.source import CONFIG, find_tokenizer
from lab.train.agreement import compare_ranks, digest, gather
from lab.train.environment import RESTART, check_run, describe_code, room_for_checkpoints

OF_BRANCH = ("start", "probe", "optim.schedule", "optim.decay_tokens", "optim.min_lr", "train.checkpoint_every_tokens")
"""Settings, with train.tokens, in which a run may differ from its base and yet continue data order and counts."""


@dataclass(frozen=True)
class Start:
    """A run that is about to train: its settings, this process of it, and the checkpoint to continue at.

    A new run may take the optimizer of a `base`, the checkpoint of another run. It continues its data order, tokens and
    counts as well unless there is a `difference`, a setting that does not allow it.
    """

    experiment: Experiment
    launch: Launch = field(default_factory=Launch)
    checkpoint: Checkpoint | None = None
    base: Checkpoint | None = None
    difference: str = ""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.experiment.run.path)

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that the run begins with: its own, or its base."""
        return self.checkpoint or self.base


@contextmanager
def own_run(experiment: Experiment) -> Iterator[None]:
    """Own the run folder during the body, as the first process; the others wait for it when they meet.

    Nothing of the folder is left if nothing was written.

    Raises: InUse, ConfigError where the folder cannot be made.
    """
    path = experiment.run.path
    had_parent = path.parent.exists()
    with files.writing(f"run.folder={experiment.run.folder}", "folder"):
        path.mkdir(parents=True, exist_ok=True)
    try:
        with locks.locked(path / locks.LOCK_NAME):
            # What another process left half written; under the lock, no other one is writing.
            files.delete_leftovers(path)
            shutil.rmtree(path / "checkpoints" / TEMPORARY, ignore_errors=True)
            yield
    finally:
        with suppress(OSError):
            path.rmdir()  # fails if anything was written
            if not had_parent:
                path.parent.rmdir()


def find_resume(experiment: Experiment, launch: Launch, *, resume: bool) -> Checkpoint | None:
    """Find the checkpoint that the run resumes from, and hash it; None for a run that has not been trained yet.

    The first process finds it, and all of them hash the files of tensors.

    Raises: CheckpointError if a run of that name exists and --resume is missing, its settings differ, or nothing of it
        can be resumed.
    """
    path = ""
    if check_run(experiment, resume=resume) and launch.is_first:
        folder = RunFolder(experiment.run.path)
        saved = newest(folder.checkpoints, unread=TENSORS)
        if saved is None and not is_untrained(folder.checkpoints):
            raise CheckpointError(f"{folder.checkpoints}: holds no checkpoint; restore one, or {RESTART}")
        if saved is not None and experiment.optim.schedule != "cosine":
            saved = find_shared(experiment, candidates(folder.checkpoints), experiment.train.steps)
        try:
            losses = find_losses(folder, saved)[1]
        except CheckpointError as lost:
            assert saved is not None, "nothing was written before the start"
            reject(saved.folder, str(lost), partial(reaches, folder))
        for loss in losses:
            show(loss, error=True)
        if saved is not None:
            path = str(saved.folder)
    path = gather("checkpoint", path, launch)[0]
    if not path:
        return None
    checkpoint = Checkpoint(Path(path))
    hash_tensors(checkpoint, launch)
    if launch.is_first:
        read_state(checkpoint)  # raises if it has not all parts of a run's state
    return checkpoint


def hash_tensors(checkpoint: Checkpoint, launch: Launch) -> None:
    """Compare the files of tensors with the manifest, process r the files r, r + n, ... of n. A collective call.

    They are most of a checkpoint, 96 GB for 8B parameters: none of them is read before.

    Raises: CheckpointError.
    """
    paths = checkpoint.tensor_files()[launch.rank :: launch.world_size]
    mine = {path.name: checkpoint.files[path.name] for path in paths}
    for error in gather("error", next(files.errors_in(checkpoint.folder, mine), ""), launch):
        if error:
            reject(checkpoint.folder, f"{error}; {RESTORE}")


def find_shared(experiment: Experiment, folders: list[Path], last: int) -> Checkpoint:
    """Find the newest of some checkpoints, newest first, that an unbroken run of these settings has by step `last`.

    Raises: CheckpointError for a broken one, ConfigError if there is none.
    """
    train = experiment.train
    rule = f"no checkpoint before the decay of {experiment.optim.decay_tokens} is kept (train.keep_checkpoints)"
    for folder in folders:
        if error := find_error(folder, TENSORS):
            reject(folder, error)
        state = read_state(Checkpoint(folder))
        step = state["step"]
        if last == train.steps < step:
            # A run that resumes goes back only to become longer: what it has trained is not deleted.
            rule = f"the run has trained for {step:,} steps of train.batch_tokens, and is not cut"
            break
        lr = experiment.optim.lr_at(step, train.steps, train.batch_tokens)
        if step <= last and math.isclose(state["schedule"]["_last_lr"][0], lr):
            return Checkpoint(folder)
    raise ConfigError(
        experiment.format_error("train.tokens", f"{rule}; set it back or raise it, or choose another --run.name")
    )


def find_base(start: Start) -> Start:
    """Find and hash the base of a run, if it is new and takes the optimizer of another one. A collective call.

    Raises: ConfigError, CheckpointError.
    """
    experiment, section = start.experiment, start.experiment.start
    if start.checkpoint is not None or section is None or not section.optimizer:
        return start
    folder = difference = ""
    if start.launch.is_first:
        path = Path(section.path)
        base = open_checkpoint(path, TENSORS)
        theirs = load_experiment(base.folder.parents[1] / CONFIG).to_dict()
        for key, before, now in find_changes(theirs, experiment.to_dict()):
            if not key.startswith(OF_BRANCH) or "cosine" in (before, now):
                difference = f"the rest begins at 0, as {key} is {before} there and {now} here"
        if not difference:
            base = find_shared(experiment, candidates(path / "checkpoints") or [path], experiment.train.steps - 1)
        folder = str(base.folder)
        show(f"start: the optimizer of {folder}; {difference or 'its data order, tokens and counts go on'}")
    folder, _, difference = gather("base", f"{folder}\n{difference}", start.launch)[0].partition("\n")
    checkpoint = Checkpoint(Path(folder))
    hash_tensors(checkpoint, start.launch)
    return replace(start, base=checkpoint, difference=difference)


def check_data(data: PackedData, launch: Launch, *, is_resumed: bool) -> None:
    """Prepare what nodes with a folder of their own lack, and reject other shards or haystacks than the first rank's.

    The first rank has prepared its own. A resumed run may have its haystack in its folder. A collective call.

    Raises: DataError, ConfigError, PeerError.
    """
    if launch.world_size == 1:
        return
    # The first rank gets here when its shards are prepared, which those of its node then read.
    gather("prepared", "", launch)
    record = {}
    if launch.local_rank == 0:
        data.prepare_data()
        for shards in map(shard_folder, data.config.parts):
            for name, sha256 in {TOKENIZER: files.sha256(shards / TOKENIZER), **hash_manifests(shards)}.items():
                record[f"data.folder/{shards.name}/{name}"] = f"SHA-256 {sha256[: files.HASH_DIGITS]}"
        haystack = data.experiment.probe_section.haystack
        if haystack is not None and not (is_resumed and (data.experiment.run.path / KEPT).exists()):
            text = json.dumps(read_texts(Path(haystack), "probe.haystack"))
            record["probe.haystack"] = f"text of {digest(text.encode())}"
    compare_ranks("data", record, launch)


def check_kernels(experiment: Experiment, launch: Launch) -> None:
    """Reject ranks that compute on another device or by other kernels than the first rank. A collective call.

    Raises: ConfigError, PeerError.
    """
    choices = choose_kernels(experiment)
    # Reasons contain messages of packages, which need not be the same on all ranks.
    own = {name: choice for name, (choice, _) in choices.items()}
    compare_ranks("kernels", own, launch, {name: f"{choice} ({reason})" for name, (choice, reason) in choices.items()})


def choose_kernels(experiment: Experiment) -> dict[str, tuple[str, str]]:
    """Choose the device and the kernels of this process, each with its reason."""
    train = experiment.train
    device = devices.device_for(train.accelerator, "train.accelerator")
    backend, reason = choose_for(train.backend, device, experiment.model.head_dim, bf16=train.bf16)
    compiled, why = devices.choose_compile(train.compile, device)
    return {
        "train.accelerator": (device.type, devices.processor(device)),
        "train.backend": (backend, reason),
        "flash attention": (current_flash_attention_impl() or "torch's own", reason),
        "train.compile": ("yes" if compiled else "no", why),
        # A GPU compiles the loss whatever the setting.
        "compiled loss": (str(device.type == "cuda" and devices.compiles()), "where Triton and a C compiler work"),
    }


def start_folder(start: Start, data: PackedData, threads: int, *, restart: bool = False) -> None:
    """Write the files that describe the run, after the last checks; on a resume, add to them and drop later records.

    A new run is marked as untrained before anything else is written; a `restart` first moves the old one aside.
    """
    experiment = start.experiment
    checkpoint = start.checkpoint
    path = start.folder.path
    shards = shard_folder(experiment.data)
    tokenizer = load_tokenizer(shards)
    check_vocabulary(experiment)
    contents: dict[str, bytes | dict[str, object]] = {
        "tokenizer.json": (shards / "tokenizer.json").read_bytes(),
        "config.yaml": experiment.to_yaml().encode(),
    }
    contents |= {f"{PLUGINS}/{Path(name).name}": Path(name).read_bytes() for name in experiment.plugins}
    for folder in map(shard_folder, experiment.data.parts):
        show(f"data: {summarise(folder).summary}")
    if len(data.config.parts) == 1 and (epochs := experiment.train.tokens / data.epoch_tokens()) > 1:
        show(f"data: training reads the corpus {epochs:,.2f} times")
    if experiment.skip is not None and experiment.reads_token_types:
        # A resumed run keeps the types that it started with.
        source = start.folder.token_types
        if checkpoint is None:
            source = result_file(Path(experiment.skip.selection))
        read_token_types(source, tokenizer)
        contents[start.folder.token_types.name] = source.read_bytes()
    if restart and any(not entry.name.startswith(locks.LOCK_NAME) for entry in path.iterdir()):
        show(f"{path}: moved to {move_aside(path)}")
    # After the move: a restart needs room next to the old run, a resume has some of its checkpoints already.
    needed = room_for_checkpoints(experiment, len(candidates(start.folder.checkpoints)))
    if files.free_bytes(path) < needed:
        keep = experiment.train.keep_checkpoints
        raise DiskError(
            files.disk_error(path, needed, f"train.keep_checkpoints={keep} and the checkpoint being written")
        )
    contents["environment.json"], run = describe_start(start, data.digest(), threads)
    if checkpoint is None:
        # A run that is killed before its first checkpoint begins at step 0 again. Without this mark, the records that
        # it has left would look like those of a run whose checkpoints are lost.
        files.write_json(start.folder.checkpoints / UNTRAINED, {CONSUMED: 0})
        if (path / KEPT).exists():
            drop_from_manifest(path, run, [KEPT])  # first, so that a kill in between leaves no file missing
            (path / KEPT).unlink()
        if (probe := experiment.probe) is not None:
            text = text_to_keep(probe.haystack, experiment.data, tokenizer, probe.longest(experiment.data.window))
            if text is not None:
                contents[KEPT] = text.encode()
    start.folder.begin(contents, run, checkpoint, find_losses(start.folder, checkpoint)[0])
    show(describe_run(experiment, checkpoint))


def check_vocabulary(experiment: Experiment) -> None:
    """Reject a model with fewer embeddings than tokens, and weights that were trained with another tokenizer.

    Raises: ConfigError.
    """
    tokenizer = load_tokenizer(shard_folder(experiment.data))
    ids = n_ids(tokenizer)
    size = experiment.model.vocab_size
    if ids > size:
        raise ConfigError(f"model.vocab_size={size}: the tokenizer's largest id is {ids - 1}; use {ids} or more")
    if experiment.start is None:
        return
    path = experiment.start.path
    theirs = find_tokenizer(Path(path))  # a Hugging Face folder may have none
    if theirs and (differ := load_tokenizer(theirs).get_vocab().items() ^ tokenizer.get_vocab().items()):
        raise ConfigError(
            f"data.tokenizer: is not the one that start.path={path} was trained with ({len(differ)} entries differ); "
            "omit it"
        )


def move_aside(path: Path) -> Path:
    """Move a run folder aside under the first free name, with all but its lock, and return that name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.before-{number}")).exists():
        number += 1
    path.rename(aside)
    path.mkdir()
    # This process goes on to own the folder of that name, and so takes its lock back.
    for file in (path / locks.LOCK_NAME, locks.holder_file(path / locks.LOCK_NAME)):
        (aside / file.name).rename(file)
    return aside


def describe_start(start: Start, data: str, threads: int) -> tuple[dict[str, object], str]:
    """Describe the code, machine and data of this start, and digest the run; a resume is added to what was written.

    Raises: CheckpointError for other data.
    """
    experiment, checkpoint = start.experiment, start.checkpoint
    run = digest_of_run(experiment.to_dict(), data)
    now = {
        "data": data,
        **describe_code(),
        "hardware": devices.hardware(),
        "seed": experiment.run.seed,
        "threads": threads,
    }
    if start.restored is None or start.difference:
        return now, run
    first = RunFolder(start.restored.folder.parents[1]).environment()
    if data != (expected := first.get("data")):
        raise CheckpointError(
            f"{shard_folder(experiment.data)}: contains other data than the run was started with (SHA-256 {data}, "
            f"expected {expected}); restore it, or choose another --run.name"
        )
    if checkpoint is None:
        return {**now, "start_tokens": start.restored.consumed_tokens}, run
    resumes = [*first.get("resumes", []), {"consumed_tokens": checkpoint.consumed_tokens, **now}]
    return {**first, "resumes": resumes}, run


def describe_run(experiment: Experiment, checkpoint: Checkpoint | None) -> str:
    """Format the run's size, its attention kernel, whether blocks are compiled, the reasons, and warnings."""
    train = experiment.train
    choices = choose_kernels(experiment)
    start = "" if checkpoint is None else f"; continues at {checkpoint.consumed_tokens:,} tokens"
    lines: list[str | None] = [
        f"run: {experiment.run.path}: {experiment.model.n_parameters():,} parameters, {train.steps:,} steps of "
        f"{train.batch_tokens:,} tokens on {choices['train.accelerator'][0]} in {train.precision}{start}",
        "attention: {} ({})".format(*choices["train.backend"]),
        "compiled blocks: {} ({})".format(*choices["train.compile"]),
    ]
    if experiment.probe is None:
        lines.append("probe: none; the run trains and counts alone")
    lines += [base_warning(experiment.model.theta, experiment.data.window), room_warning(experiment)]
    return "\n".join(filter(None, lines))


def room_warning(experiment: Experiment) -> str | None:
    """Return one line of warning if full windows leave a part of each pack empty."""
    data, pack = experiment.data, experiment.train.micro_batch_tokens
    used = pack - pack % data.window
    if data.mode != "concatenated" or used == pack:
        return None
    return (
        f"train.micro_batch_tokens={pack}: holds {used} tokens in windows of {data.window}: the run trains on "
        f"{used / pack:.0%} of train.tokens; use a multiple of data.window"
    )
