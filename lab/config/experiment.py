"""The whole experiment as one typed value, composed of the parts' configs and read from YAML; no torch.

Order: defaults, the YAML file, dotted command-line overrides, then settings derived from others. A key that is unknown,
of the wrong type, out of range, contradictory or ignored is an error; all errors are reported at once.

The name auto is the config's and 8 hex digits. The digits are the SHA-256 of the settings that differ from their
defaults, and of the precision, as JSON with sorted keys. Settings that do not change what a run computes are left out
(lab.runs.arms.FREE_TO_CHANGE). So equal settings give equal names on any machine, however they are written. A setting
that is added to the lab later, at its default, renames nothing.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lab.config.sections import RunConfig, StartConfig, TrackConfig, TrainConfig, fill_in, fill_in_tags, override
from lab.data.config import DataConfig, Synthetic
from lab.evidence import EvidenceConfig
from lab.evidence.base import Stored
from lab.evidence.repeat import Repeat
from lab.evidence.weights import ByEvidence
from lab.masks import Causal, MaskConfig
from lab.model.config import DecoderConfig, OptimConfig
from lab.positions import Frequencies
from lab.positions.methods import PositionConfig
from lab.probe.config import NEEDLES, ProbeConfig, ProbeSection
from lab.runs.arms import FREE_TO_CHANGE
from lab.runs.source import CONFIG, EXPERIMENT, inherit
from lab.schema import PathText, Section, flatten, format_yaml, given, load_plugins, plain, read_yaml, validated
from lab.schema.plugins import digest_of
from lab.shape import ByContext
from lab.skip.methods import SkipConfig

AUTO = "auto"  # the run.name that is replaced
DIGITS = 8
LOGGED_EIGHTHS = (1, 2, 4, 6)  # of the window, where f is logged
WeightsConfig = Annotated[ByEvidence | ByContext, Field(discriminator="by")]


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
    """Attention mask inside a training window: causal, document, anchor or your own."""
    skip: SkipConfig | None = None
    """Position ids with gaps: pose, rpes or longrecipe; left out, ids count up by one."""
    evidence: EvidenceConfig = field(default_factory=Repeat)
    """What counts as a target's evidence, whose distances the demand counts."""
    weights: WeightsConfig | None = None
    """Loss weights of targets, by evidence or by visible context; left out, all weigh 1."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and schedule."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, devices, checkpoints."""
    probe: ProbeSection = field(default_factory=ProbeSection)
    """Effective length."""
    track: TrackConfig = field(default_factory=TrackConfig)
    """Records."""
    plugins: tuple[PathText, ...] = ()
    """Python files with methods of your own (docs/plugins.md); the run keeps copies of them."""

    def rules(self) -> Iterator[str]:
        """Find the faults between sections."""
        data, train, probe = self.data, self.train, self.probe
        if self.model.vocab_size != (vocabulary := getattr(data.tokenizer, "vocab_size", self.model.vocab_size)):
            yield self.fault("model.vocab_size", f"contradicts data.tokenizer.vocab_size={vocabulary}; leave it out")
        if train.micro_batch_tokens < data.window:
            yield self.fault("train.micro_batch_tokens", f"must be >= data.window={data.window}; raise it")
        if train.tokens < train.batch_tokens:
            yield self.fault("train.tokens", f"must be >= train.batch_tokens={train.batch_tokens}; raise it")
        elif self.optim.warmup_steps >= train.steps:
            rule = f"must be < {train.steps}, the steps of the run (train.tokens / train.batch_tokens)"
            yield self.fault("optim.warmup_steps", f"{rule}; lower it or train longer")
        for name in ("model.n_kv_heads", "data.window", "train.micro_batch_tokens"):
            if attrgetter(name)(self) % train.context_parallel:
                yield self.fault("train.context_parallel", f"must divide {name}={attrgetter(name)(self)}; change one")
        needles = self.probed({}).get("needles", NEEDLES)
        if probe.required > needles:
            yield self.fault("probe.required", f"must be <= {needles}, the numbers of a test; lower it")
        has_text = probe.haystack is not None or isinstance(data.corpus, Synthetic)
        if data.held_out_frac == 0 and (probe.loss_tokens or not has_text):
            rule = "the probe needs held-out text; raise it, or set probe.loss_tokens=0 and probe.haystack"
            yield self.fault("data.held_out_frac", rule)
        if len({Path(name).name for name in self.plugins}) < len(self.plugins):
            yield self.fault("plugins", "must have names of their own; rename one of the files")
        yield from self.position_rules()
        yield from self.id_rules()
        yield from self.evidence_rules()

    def position_rules(self) -> Iterator[str]:
        """Find the faults between the position methods and the other sections."""
        frequency, distance, window = self.position.frequency, self.position.distance, self.data.window
        longest = max(window, self.probe.longest(window)) if distance.beyond_training else window
        yield from (f"position.distance.{fault}" for fault in distance.length_faults(longest))
        if (getattr(frequency, "theta", None) or math.inf) <= self.model.theta:
            rule = f"must be > model.theta={self.model.theta} (the adjusted base is larger)"
            yield self.fault("position.frequency.theta", f"{rule}; raise it, or set model.theta and method: rope")
        if (getattr(distance, "train_len", None) or 0) > window:
            rule = f"must be <= data.window={window}, the longest distance that is counted; lower it"
            yield self.fault("position.distance.train_len", rule)
        near = getattr(self.model.layers, "window", None) or 0
        if near >= window:
            yield self.fault("model.layers.window", f"must be < data.window={window}, or no pair is hidden; lower it")
        bands = "" if distance.method == "plain" else "position.distance.method"
        bands = "model.layers.window" if near else bands
        needs = "model.softmax.method" if getattr(self.model.softmax, "is_sink", False) else bands
        if self.train.backend == "xformers" and needs:
            yield self.fault("train.backend", f"returns no log-sum-exp, which {needs} needs; use auto")
        if bands and (self.skip or self.mask.running or self.mask.chunks is not None):
            yield self.fault(bands, "training with it needs ids that count up from 0 in every document; leave one out")

    def id_rules(self) -> Iterator[str]:
        """Find the faults between what decides ids and who sees whom (skip, mask), and the windows."""
        data, mask, weights = self.data, self.mask, self.weights
        weighs = isinstance(weights, ByContext)
        masked = "mask.method" if mask.method != "causal" else "mask.chunks"
        is_masked = mask.method != "causal" or mask.chunks is not None
        scheduled = data.schedule is not None
        counted = (weighs or scheduled) and mask.method == "document" and mask.chunks is None  # a mask that they know
        used = {"data.schedule.start": scheduled, "weights.by": weighs}
        used |= {"skip.method": self.skip is not None, masked: is_masked and not counted}
        names = [name for name, is_used in used.items() if is_used]
        if len(names) > 1:
            yield self.fault(names[-1], f"does not go with {names[0]}; leave one of them out")
        if self.skip is not None and self.skip.target_len <= data.window:
            yield self.fault(
                "skip.target_len", f"must be > data.window={data.window}, or there is nothing to skip; raise it"
            )
        joins = {masked: is_masked, "skip.selection": getattr(self.skip, "selects", False)}
        for name, is_used in joins.items():
            if is_used and data.mode != "concatenated":
                yield self.fault(name, "needs windows of several documents; set data.mode: concatenated")
        if isinstance(weights, ByEvidence):
            farthest = self.reach if weights.distance == "ids" else data.window
            if weights.keep[-1][1] >= farthest - 1 and len(weights.keep) == 1:
                yield self.fault("weights.keep", f"must leave out distances below {farthest}; lower its end")
            if weights.distance == "ids" and self.skip is None:
                yield self.fault("weights.distance", "needs ids with gaps; set skip.method, or use tokens")
        if data.schedule is not None and data.schedule.start >= data.window:
            yield self.fault("data.schedule.start", f"must be < data.window={data.window}; lower it")
        if data.schedule is not None and data.schedule.tokens > self.train.tokens:
            rule = f"must be <= train.tokens={self.train.tokens}, or the window is never whole; lower it"
            yield self.fault("data.schedule.tokens", rule)
        if weighs and data.mode == "uniform":
            yield self.fault("data.mode", "weights.by=context counts no uniform cuts; set another")

    def evidence_rules(self) -> Iterator[str]:
        """Find the faults between what is stored by token, the corpus, and runs that are no documents in order."""
        remedies = {"asked": "use repeat or suffix", "answers": "use near"}
        for kind in () if self.data.labelled else self.stored.keys() & remedies.keys():
            rule = "needs the labels of data.corpus.name: synthetic or mqar, not upsampled"
            yield self.fault(self.stored[kind], f"{rule}; {remedies[kind]}")
        moves = {"mask.chunks": self.mask.chunks, "mask.method": self.mask.method not in ("causal", "document")}
        moves["skip.selection"] = getattr(self.skip, "selects", False)
        for name, is_used in moves.items():
            for kind, setting in self.stored.items() if is_used else ():
                yield self.fault(name, f"keeps no documents in order, which {setting}={kind} needs; leave one out")

    def probed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of the probe, some of them as given; not checked.

        Another protocol than the run's comes with its own answer budget, and only the lab's takes the corpus's sizes.
        """
        corpus = self.data.corpus
        values = asdict(self.probe)
        protocol = given.get("protocol", self.probe.protocol)
        if protocol != self.probe.protocol:
            values["answer_budget"] = None
        if protocol == "ours" and isinstance(corpus, Synthetic):
            values |= {"needles": corpus.needles, "digits": corpus.digits}
        return {**values, **given}

    @property
    def tests(self) -> ProbeConfig:
        """The settings of the probe, with those of its tests."""
        return ProbeConfig(**self.probed({}))

    @property
    def frequencies(self) -> Frequencies:
        """The frequency method at the model's rotary base and head size."""
        return Frequencies.of(self.position.frequency, self.model.head_dim, self.model.theta)

    @property
    def reads_token_types(self) -> bool:
        """Whether samples are made of sentences with impactful tokens."""
        return getattr(self.skip, "by_types", False)

    @property
    def stored(self) -> dict[str, str]:
        """The kinds of numbers that the run reads beside the shards, and the settings that need them."""
        kinds = {self.evidence.method: "evidence.method"} if isinstance(self.evidence, Stored) else {}
        beside = getattr(self.weights, "beside", None)
        return kinds | ({} if beside is None else {beside: "weights.control"})

    @property
    def planned(self) -> ByContext | None:
        """The weights by visible context, which are planned for the corpus."""
        return self.weights if isinstance(self.weights, ByContext) else None

    @property
    def reach(self) -> int:
        """Longest distance that training can show, plus one: what the counter holds."""
        return self.data.window if self.skip is None else self.skip.target_len

    @property
    def logged_positions(self) -> dict[str, int]:
        """Relative positions whose f is logged, by column: f_at_0.5L is f(L // 2), with L what the counter holds."""
        return {f"f_at_{eighths / 8:g}L": eighths * self.reach // 8 for eighths in LOGGED_EIGHTHS}

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as nested dicts of what YAML can hold."""
        return json.loads(json.dumps(asdict(self)))

    def to_yaml(self) -> str:
        """Write the resolved experiment as YAML that reads back to the same."""
        return format_yaml(self.to_dict())

    def describe(self) -> str:
        """Format parameters, FLOPs and steps as comment lines."""
        model, train, window = self.model, self.train, self.data.window
        shared = f" ({train.context_parallel} a pack)" if train.context_parallel > 1 else ""
        return (
            f"# parameters: {model.n_parameters(False):,} untied, {model.n_parameters(True):,} tied "
            f"(this run: {'tied' if model.tie_embeddings else 'untied'})\n"
            f"# FLOPs per token: {model.flops_per_token_causal(window):,} with full windows of {window:,}\n"
            f"# steps: {train.steps:,} of {train.n_packs:,} packs; {train.world_size} processes{shared}, "
            f"accumulation {train.accumulation}\n"
        )


def load_experiment(path: Path, overrides: dict[str, Any] | None = None) -> Experiment:
    """Read a YAML file, or a config of the lab by its name, apply overrides, fill in derived settings, check all.

    An override whose value is a section, as wandb passes nested parameters, overrides the settings in it.

    Raises: ConfigError with one line per fault.
    """
    values, overrides = read_yaml(path), flatten(overrides or {})
    if "plugins" in overrides:
        load_plugins(overrides["plugins"])
    else:
        load_plugins(values.get("plugins"), str(path), path.parent if path.name in (CONFIG, EXPERIMENT) else None)
    whole = copy.deepcopy(values)
    override(whole, overrides)
    inherit(values, whole)
    fill_in_tags(values)  # before the overrides, which drop the keys of a member they replace
    override(values, overrides)
    fill_in_tags(values)
    name = path.stem if path.stem != "config" else path.parent.name
    fill_in(values, name)
    experiment = validated(Experiment, values)
    if experiment.run.name != AUTO:
        return experiment
    return replace(experiment, run=replace(experiment.run, name=automatic_name(experiment, name)))


def automatic_name(experiment: Experiment, config: str) -> str:
    """Name a run after its config and what it computes."""
    tests = experiment.tests
    chosen = flatten(json.loads(json.dumps(given(experiment), default=plain)))
    chosen |= {"probe.needles": tests.needles, "probe.digits": tests.digits, "probe.answer_budget": tests.budget}
    chosen["train.precision"] = experiment.train.precision
    # probe.batch may change at a resume, and yet has a name: in bfloat16 some answers depend on it
    named = {key: value for key, value in chosen.items() if key == "probe.batch" or not key.startswith(FREE_TO_CHANGE)}
    named |= {f"plugins.{Path(path).name}": digest_of(Path(path)) for path in named.pop("plugins", ())}
    text = json.dumps(named, sort_keys=True)
    return f"{config}-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"
