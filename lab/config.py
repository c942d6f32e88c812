"""The whole experiment as one typed value, composed of the parts' configs; no torch.

Order: defaults, the YAML file, dotted command-line overrides, then what follows from other settings. A key that is
unknown, of the wrong type, out of range, contradicting or ignored is an error, and all of them are reported at once.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge

from lab.data.config import Bpe, DataConfig, Synthetic
from lab.masks import Causal
from lab.masks.config import MaskConfig
from lab.model.config import DecoderConfig
from lab.model.optim import OptimConfig
from lab.positions.config import PositionConfig
from lab.probe.config import ProbeConfig
from lab.schema import NonNegative, Positive, Section
from lab.settings import Raw, validated
from lab.shape.config import Gaps, ShapeConfig
from lab.skip.config import SkipConfig
from lab.source.inherit import inherit

PRECISIONS = Literal["auto", "fp32", "bf16"]
STRATEGIES = Literal["auto", "single", "ddp", "fsdp"]
BACKENDS = Literal["auto", "reference", "sdpa", "varlen", "flash", "xformers", "flex"]
CUDA_BACKENDS = ("varlen", "flash", "xformers", "flex")  # flex trains there only
DEFAULT_NEEDLES, DEFAULT_DIGITS = 4, 6  # arXiv:2410.18745, section 3


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    """Length of the training, devices, checkpoints."""

    tokens: Positive = 1_000_000
    """Tokens to train on; the steps are this over batch_tokens, rounded up."""
    batch_tokens: Positive = 2048
    """Tokens of a global batch, one optimizer step."""
    micro_batch_tokens: Positive = 2048
    """Tokens of a pack, what one device takes at a time; accumulation follows from the devices."""
    devices: Positive = 1
    """Processes on a node, one for each device."""
    nodes: Positive = 1
    """Nodes; several are started by SLURM or torchrun."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """What to run on; auto takes a GPU where there is one."""
    strategy: STRATEGIES = "auto"
    """single, ddp, or fsdp (FSDP2, sharded); auto is single for one process and ddp for more."""
    precision: PRECISIONS = "auto"
    """bf16 computes in bfloat16 and keeps float32 weights; auto is bf16 on a GPU and fp32 on a CPU."""
    backend: BACKENDS = "auto"
    """Attention kernel; auto chooses by device and prints which and why."""
    recompute: bool = False
    """Whether the backward pass computes each block's activations again: a third more work, far less memory."""
    threads: Positive | None = None
    """CPU threads of each process, part of what makes two runs equal bit by bit; left out, cores over processes."""
    checkpoint_every_tokens: Positive | None = None
    """Consumed tokens between checkpoints; left out, only at the end and when stopped."""
    keep_checkpoints: Annotated[int, Ge(2)] = 2
    """Newest checkpoints that are kept."""
    async_checkpoints: bool = False
    """Whether to train on while a checkpoint is written, from a copy of weights and optimizer in CPU memory."""

    def rules(self) -> list[str]:
        """Refuse batches that cannot be divided among the processes."""
        faults = []
        if self.batch_tokens % self.micro_batch_tokens:
            near = max(1, round(self.batch_tokens / self.micro_batch_tokens)) * self.micro_batch_tokens
            faults.append(
                f"batch_tokens={self.batch_tokens}: must be a multiple of "
                f"micro_batch_tokens={self.micro_batch_tokens}; use {near}"
            )
        elif self.n_packs % self.world_size:
            near = -(-self.n_packs // self.world_size) * self.world_size * self.micro_batch_tokens
            faults.append(
                f"batch_tokens={self.batch_tokens}: its {self.n_packs} packs must divide evenly among "
                f"{self.world_size} processes (devices * nodes); use {near}"
            )
        if self.strategy == "single" and self.world_size > 1:
            faults.append(f"strategy=single: runs one process, devices * nodes is {self.world_size}; use ddp or fsdp")
        if self.accelerator == "cpu" and self.backend in CUDA_BACKENDS:
            faults.append(f"backend={self.backend}: runs on a CUDA device only; use sdpa or auto")
        return faults

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return self.devices * self.nodes

    @property
    def n_packs(self) -> int:
        """Packs of a global batch."""
        return self.batch_tokens // self.micro_batch_tokens

    @property
    def accumulation(self) -> int:
        """Packs that each process takes for one optimizer step."""
        return self.n_packs // self.world_size

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return -(-self.tokens // self.batch_tokens)


@dataclass(frozen=True, kw_only=True)
class StartConfig(Section):
    """Trained weights to start from."""

    path: str
    """Run folder, checkpoint in it, or Hugging Face folder; shape, tokenizer and positions left out follow it."""


@dataclass(frozen=True, kw_only=True)
class CountConfig(Section):
    """What is logged of the position frequency, which is always counted in full."""

    positions: tuple[NonNegative, ...] | None = None
    """Relative positions whose f is logged; left out, the window's 1/8, 1/4, 1/2 and 3/4."""


@dataclass(frozen=True, kw_only=True)
class TrackConfig(Section):
    """Logging, dashboards, the picture."""

    every_steps: Positive = 10
    """Optimizer steps between lines of metrics.jsonl."""
    wandb: Literal["off", "online", "offline"] = "off"
    """Whether Weights & Biases mirrors the run folder."""
    project: str | None = None
    """Weights & Biases project; left out, probe-lab."""
    picture: bool = False
    """Whether the run ends by drawing picture.png (needs matplotlib)."""

    def rules(self) -> list[str]:
        """Refuse a project that nothing uses."""
        if self.project is not None and self.wandb == "off":
            return [f"project={self.project}: would be ignored, wandb=off; set wandb or leave project out"]
        return []


@dataclass(frozen=True, kw_only=True)
class RunConfig(Section):
    """Name, seed and folder of the run."""

    name: str
    """Name of the run's folder; left out, that of the config file."""
    seed: NonNegative = 0
    """Seed of the weights, the data order and the probes."""
    folder: str = "runs"
    """Folder that holds the run folders."""

    def rules(self) -> list[str]:
        """Refuse a name that is not a folder name."""
        if self.name in ("", ".", "..") or Path(self.name).name != self.name:
            return [f"name={self.name}: must be a plain folder name; set run.folder for its place"]
        return []

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder) / self.name


@dataclass(frozen=True, kw_only=True)
class Experiment(Section):
    """The settings of one run."""

    run: RunConfig
    """Name, seed and folder."""
    model: DecoderConfig
    """The decoder."""
    start: StartConfig | None = None
    """Weights to start from; left out, random ones."""
    data: DataConfig = field(default_factory=DataConfig)
    """Corpus, tokenizer, window."""
    position: PositionConfig = field(default_factory=PositionConfig)
    """Position methods."""
    mask: MaskConfig = field(default_factory=Causal)
    """Attention mask inside a training window: causal, document or anchor."""
    skip: SkipConfig | None = None
    """Position ids with gaps: pose, rpes or longrecipe; left out, ids count up by one."""
    shape: ShapeConfig | None = None
    """Target profile of the position frequency; left out, segments are used in the order drawn."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and schedule."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, devices, checkpoints."""
    count: CountConfig = field(default_factory=CountConfig)
    """Position frequency."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """Effective length."""
    track: TrackConfig = field(default_factory=TrackConfig)
    """Records."""

    def rules(self) -> list[str]:
        """Collect the faults between sections."""
        data, train, probe = self.data, self.train, self.probe
        faults = []
        if isinstance(data.tokenizer, Bpe) and self.model.vocab_size != data.tokenizer.vocab_size:
            faults.append(
                f"model.vocab_size={self.model.vocab_size}: contradicts data.tokenizer.vocab_size="
                f"{data.tokenizer.vocab_size}; leave model.vocab_size out"
            )
        if train.micro_batch_tokens < data.window:
            faults.append(
                f"train.micro_batch_tokens={train.micro_batch_tokens}: must be >= data.window={data.window}; raise it"
            )
        if train.tokens < train.batch_tokens:
            faults.append(f"train.tokens={train.tokens}: must be >= train.batch_tokens={train.batch_tokens}; raise it")
        elif self.optim.warmup_steps >= train.steps:
            faults.append(
                f"optim.warmup_steps={self.optim.warmup_steps}: must be < {train.steps}, the steps of the run "
                "(train.tokens / train.batch_tokens); lower it or train longer"
            )
        faults += [
            f"count.positions={position}: must be < {self.reach}, the longest distance counted plus one; leave it out"
            for position in self.count.positions or ()
            if position >= self.reach
        ]
        faults += self.position_faults() + self.mask_faults() + self.shape_faults()
        if probe.required > (probe.needles or DEFAULT_NEEDLES):
            faults.append(f"probe.required={probe.required}: must be <= probe.needles={probe.needles}; lower it")
        if data.held_out_frac == 0 and (probe.loss_tokens or (probe.haystack is None and not self.is_synthetic)):
            faults.append(
                "data.held_out_frac=0.0: the probe needs held-out text; raise it, or set probe.loss_tokens=0 and "
                "probe.haystack"
            )
        return faults

    def position_faults(self) -> list[str]:
        """List what is wrong between the position methods and the other sections."""
        frequency, distance, window = self.position.frequency, self.position.distance, self.data.window
        longest = max(window, self.probe.longest(window)) if distance.beyond_training else window
        faults = [f"position.distance.{fault}" for fault in distance.length_faults(longest)]
        theta = getattr(frequency, "theta", None)
        if theta is not None and theta <= self.model.theta:
            faults.append(
                f"position.frequency.theta={theta}: must be > model.theta={self.model.theta} (the adjusted base is "
                "larger); raise it, or set model.theta and method: rope"
            )
        reach = getattr(distance, "train_len", None)
        if reach is not None and reach > window:
            faults.append(
                f"position.distance.train_len={reach}: must be <= data.window={window}, the longest distance that is "
                "counted; lower it"
            )
        if distance.method != "plain" and self.train.backend == "xformers":
            faults.append(
                f"train.backend=xformers: returns no log-sum-exp to merge the bands of {distance.method} by; use auto"
            )
        return faults

    def mask_faults(self) -> list[str]:
        """List what is wrong between masks, skips and the other sections."""
        mask, skip, data = self.mask, self.skip, self.data
        inside = mask.method if mask.method != "causal" else "chunks" if mask.chunks is not None else None
        faults = []
        if inside is not None and data.mode != "concatenated":
            field = f"mask.method={mask.method}" if mask.method != "causal" else f"mask.chunks={mask.chunks}"
            faults.append(f"{field}: needs windows of several documents; set data.mode: concatenated")
        if data.order == "related" and mask.method != "causal":
            faults.append(
                f"data.order=related: would be ignored, mask.method={mask.method} keeps documents apart; leave "
                "one of them out"
            )
        if skip is not None and inside is not None:
            faults.append(f"skip.method={skip.method}: goes with mask: causal without chunks; leave one of them out")
        if skip is not None and skip.selects and data.mode != "concatenated":
            faults.append(
                f"data.mode={data.mode}: skip.selection and skip.random_sentences take sentences of full windows of "
                "skip.target_len tokens; set data.mode: concatenated"
            )
        if skip is not None and skip.target_len <= data.window:
            faults.append(
                f"skip.target_len={skip.target_len}: must be > data.window={data.window}, or there is nothing to skip; "
                "raise it"
            )
        odd = self.has_gaps or mask.method == "anchor" or mask.chunks is not None
        if self.position.distance.method != "plain" and (odd or getattr(mask, "ids", "reset") == "running"):
            faults.append(
                f"position.distance.method={self.position.distance.method}: training with it needs ids that count up "
                "from 0 in every document; use plain distance, and the method when evaluating"
            )
        return faults

    def shape_faults(self) -> list[str]:
        """List what is wrong between the shape and the other sections."""
        shape, data, mask = self.shape, self.data, self.mask
        if shape is None:
            return []
        method, faults = shape.strategy.method, []
        if self.skip is not None:
            faults.append(f"skip.method={self.skip.method}: would be ignored, shape decides the ids; leave it out")
        if mask.method != "causal" or mask.chunks is not None:
            field = f"mask.method={mask.method}" if mask.method != "causal" else f"mask.chunks={mask.chunks}"
            faults.append(f"{field}: shape plans for mask: causal without chunks; leave the mask out")
        wanted = "natural" if method == "choose" else "concatenated"
        if data.mode != wanted:
            reason = "draws documents as they are" if method == "choose" else "joins documents"
            faults.append(f"data.mode={data.mode}: shape.strategy.method={method} {reason}; set data.mode: {wanted}")
        if isinstance(shape.strategy, Gaps) and shape.strategy.target_len <= data.window:
            faults.append(
                f"shape.strategy.target_len={shape.strategy.target_len}: must be > data.window={data.window}, or there "
                "is nothing to skip; raise it"
            )
        up_to = getattr(shape.target, "up_to", None)
        if up_to is not None and up_to >= self.reach:
            faults.append(
                f"shape.target.up_to={up_to}: must be < {self.reach}, the longest distance plus one; leave it out"
            )
        return faults

    @property
    def reads_token_types(self) -> bool:
        """Whether samples are made of sentences with impactful tokens."""
        return getattr(self.skip, "selection", None) is not None

    @property
    def has_gaps(self) -> bool:
        """Whether position ids skip."""
        return self.skip is not None or (self.shape is not None and isinstance(self.shape.strategy, Gaps))

    @property
    def reach(self) -> int:
        """Longest distance that training can show, plus one: what the counter holds."""
        if self.shape is not None and isinstance(self.shape.strategy, Gaps):
            return self.shape.strategy.target_len
        return self.data.window if self.skip is None else self.skip.target_len

    @property
    def is_synthetic(self) -> bool:
        """Whether the corpus is the synthetic one."""
        return isinstance(self.data.corpus, Synthetic)

    @property
    def count_positions(self) -> tuple[int, ...]:
        """Relative positions whose f is logged."""
        window = self.reach
        return self.count.positions or tuple(sorted({window // 8, window // 4, window // 2, 3 * window // 4}))

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as nested dicts of plain values."""
        return dataclasses.asdict(self, dict_factory=lambda items: {k: plain(v) for k, v in items})

    def to_yaml(self) -> str:
        """Write the resolved experiment as YAML that reads back to the same."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def describe(self) -> str:
        """Describe in comment lines what follows from the settings."""
        model, train, window = self.model, self.train, self.data.window
        return (
            f"# parameters: {model.n_parameters(False):,} untied, {model.n_parameters(True):,} tied "
            f"(this run: {'tied' if model.tie_embeddings else 'untied'})\n"
            f"# FLOPs per token: {model.flops_per_token_causal(window):,} with full windows of {window:,}\n"
            f"# steps: {train.steps:,} of {train.n_packs:,} packs; {train.world_size} processes, "
            f"accumulation {train.accumulation}\n"
        )


def plain(value: Any) -> Any:
    """Turn tuples into lists, which YAML can hold."""
    return list(value) if isinstance(value, tuple) else value


def load_experiment(path: Path, overrides: dict[str, Any] | None = None) -> Experiment:
    """Read a YAML file, apply dotted overrides, fill in what follows, and check it all.

    Raises: ConfigError with one line per fault.
    """
    raw = Raw.read(path)
    given = Raw(copy.deepcopy(raw.values), raw.source)
    given.override(overrides or {})
    inherit(raw.values, given.values)
    fill_in_tags(raw.values)  # before the overrides, which drop the keys of a member they replace
    raw.override(overrides or {})
    fill_in_tags(raw.values)
    fill_in(raw.values, path)
    experiment = validated(Experiment, raw)
    assert isinstance(experiment, Experiment), "the reader returns the class it was called with"
    return experiment


def fill_in(values: dict[str, Any], path: Path) -> None:
    """Fill in settings that were left out and follow from others, so that no two must be kept equal by hand."""
    name = path.stem if path.stem != "config" else path.parent.name
    section(values, "run").setdefault("name", name)
    data = section(values, "data")
    tokenizer, corpus = section(data, "tokenizer"), section(data, "corpus")
    if tokenizer.get("method") == "bpe":
        section(values, "model").setdefault("vocab_size", tokenizer.get("vocab_size", Bpe.vocab_size))
    probe = section(values, "probe")
    synthetic = corpus.get("name") == "synthetic" and probe.get("protocol") != "string"
    for key, default in (("needles", DEFAULT_NEEDLES), ("digits", DEFAULT_DIGITS)):
        if probe.get(key) is None:
            probe[key] = corpus.get(key, getattr(Synthetic, key)) if synthetic else default


def fill_in_tags(values: dict[str, Any]) -> None:
    """Fill in the tags of unions that were left out."""
    data, position = section(values, "data"), section(values, "position")
    section(data, "corpus").setdefault("name", "synthetic")
    tokenizer = section(data, "tokenizer")
    tokenizer.setdefault("method", "file" if "path" in tokenizer else "bpe")
    section(position, "frequency").setdefault("method", "rope")
    section(position, "distance").setdefault("method", "plain")
    section(values, "mask").setdefault("method", "causal")
    if isinstance(values.get("shape"), dict):
        section(values["shape"], "target").setdefault("method", "power")
        section(values["shape"], "strategy").setdefault("method", "choose")


def section(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a section, made where it is missing; a value of another type is left for the reader to refuse."""
    found = values.setdefault(key, {}) if isinstance(values, dict) else {}
    if found is None:  # a YAML key with nothing below it
        found = values[key] = {}
    return found if isinstance(found, dict) else {}
