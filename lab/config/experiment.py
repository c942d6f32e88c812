"""The whole experiment as one typed value, composed of the parts' configs and read from YAML; no torch.

Order: defaults, the YAML file, dotted command-line overrides, then settings derived from others. A key that is unknown,
of the wrong type, out of range, contradictory or ignored is an error; all errors are reported at once.

The name auto is the config's and 8 hex digits. The digits are the SHA-256 of the settings that differ from their
defaults, and of the precision, as JSON with sorted keys. Settings that do not change what a run computes are omitted
(FREE_TO_CHANGE). So equal settings give equal names on any machine, however they are written. A setting
that is added to the lab later, at its default, renames nothing.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from lab.config.sections import RunConfig, StartConfig, TrackConfig, TrainConfig
from lab.config.settings import Settings, config_name, load_settings
from lab.core.errors import ConfigError
from lab.core.plugins import hash_plugin
from lab.core.schema import PathText, Section, non_defaults, section_to_json, validated
from lab.core.yaml import flatten, format_yaml
from lab.data.config import DataConfig, Synthetic, hash_json
from lab.evidence import EvidenceConfig
from lab.evidence.methods import Repeat
from lab.evidence.weights import ByEvidence
from lab.masks import Causal, MaskConfig
from lab.model.config import DecoderConfig, OptimConfig
from lab.positions import Frequencies
from lab.positions.methods import PositionConfig
from lab.probe.config import ProbeConfig, ProbeSection
from lab.skip import SkipConfig

AUTO = "auto"  # the run.name that is replaced
FREE_TO_CHANGE = (  # settings, or sections, that do not change what a run computes
    "train.devices",
    "train.nodes",
    "train.context_parallel",
    "train.accelerator",
    "train.strategy",
    "train.threads",
    "train.recompute",
    "train.backend",
    "train.compile",
    "train.keep_checkpoints",
    "train.final_checkpoints",
    "train.async_checkpoints",
    "probe.batch",
    "data.folder",
    "data.changed_sources",
    "track.",
    "run.folder",
    "run.name",
)
ADDED = {  # settings that earlier versions do not have: at these values a run has the digest that they gave it
    "optim.schedule": "cosine",
    "optim.decay_tokens": None,
    "optim.weight_decay": 0.1,
    "optim.beta1": 0.9,
    "optim.clip_norm": 1.0,
    "start.optimizer": False,
}


class Experiment(Section):
    """The settings of one run."""

    run: RunConfig
    """Name, seed and folder."""
    model: DecoderConfig
    """The decoder."""
    start: StartConfig | None = None
    """Weights to start from; default: random ones."""
    data: DataConfig = field(default_factory=DataConfig)
    """Corpus, tokenizer, window."""
    position: PositionConfig = field(default_factory=PositionConfig)
    """Position methods."""
    mask: MaskConfig = field(default_factory=Causal)
    """Attention mask inside a training window: causal, document, anchor or your own."""
    skip: SkipConfig | None = None
    """Position ids with gaps: pose, rpes or longrecipe; default: ids count up by one."""
    evidence: EvidenceConfig = field(default_factory=Repeat)
    """What counts as a target's evidence, whose distances the demand counts."""
    weights: ByEvidence | None = None
    """Which targets have a loss, by their evidence; default: all."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and schedule."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, devices, checkpoints."""
    probe: ProbeSection | None = field(default_factory=ProbeSection)
    """Effective length, reach and held-out loss; null for a run that trains and counts alone."""
    track: TrackConfig = field(default_factory=TrackConfig)
    """Records."""
    plugins: tuple[PathText, ...] = ()
    """Python files with methods of your own (docs/plugins.md); the run keeps copies of them."""

    def rules(self) -> Iterator[str]:
        """Find the errors between sections, each of which knows its own."""
        if len({Path(name).name for name in self.plugins}) < len(self.plugins):
            yield self.format_error("plugins", "must have names of their own; rename one of the files")
        for item in fields(self):
            if isinstance(section := getattr(self, item.name), Section):
                yield from section.joint_rules(self)

    @property
    def bands(self) -> str | None:
        """The setting by which attention runs in bands, if any."""
        if getattr(self.model.layers, "window", None) is not None:
            return "model.layers.window"
        if self.position.distance.method != "plain":
            return "position.distance.method"
        return None

    def probe_settings(self, changes: Settings) -> Settings:
        """Return all settings of the probe, with changes; they are not checked.

        Another protocol than the run's has its own answer budget. Only the lab's takes the sizes of the corpus.
        """
        corpus = self.data.parts[0].corpus
        values = asdict(self.probe_section)
        protocol = changes.get("protocol", values["protocol"])
        if protocol != values["protocol"]:
            values["answer_budget"] = None
        if protocol == "ours" and isinstance(corpus, Synthetic):
            values |= {"needles": corpus.numbers, "digits": corpus.digits}
        return {**values, **changes}

    @property
    def probe_section(self) -> ProbeSection:
        """The settings by which commands probe the run, the defaults if it does not probe itself."""
        return self.probe or ProbeSection()

    @property
    def tests(self) -> ProbeConfig:
        return ProbeConfig(**self.probe_settings({}))

    @property
    def frequencies(self) -> Frequencies:
        return Frequencies.of(self.position.frequency, self.model.head_dim, self.model.theta)

    @property
    def reads_token_types(self) -> bool:
        """Whether samples are made of sentences with impactful tokens."""
        return getattr(self.skip, "by_types", False)

    @property
    def reach(self) -> int:
        """Longest distance that training can show, plus one: what the counter holds."""
        if self.skip is None:
            return self.data.window
        return self.skip.target_len

    def to_dict(self) -> Settings:
        return json.loads(json.dumps(asdict(self)))

    def to_yaml(self) -> str:
        return format_yaml(self.to_dict())


def load_experiment(path: Path, overrides: Settings | None = None) -> Experiment:
    """Read a YAML file, or a config of the lab by its name, apply overrides, fill in derived settings, check all.

    An override whose value is a section, as wandb passes nested parameters, overrides the settings in it.

    Raises: ConfigError with one line per error.
    """
    settings = load_settings(path, overrides or {})
    try:
        experiment = validated(Experiment, settings)
    except ConfigError as error:
        # The entries of a mixture, which a list in data.corpus is short for, are named as in the list.
        text = re.sub(r"data\.corpus\.corpora(\.\d|=\[)", r"data.corpus\1", str(error))
        raise ConfigError(*re.sub(r"(data\.corpus\.)weights\.(\d+)", r"\1\2.weight", text).split("\n")) from None
    if experiment.run.name != AUTO:
        return experiment
    name = automatic_name(experiment, config_name(path))
    return replace(experiment, run=replace(experiment.run, name=name))


def automatic_name(experiment: Experiment, config: str) -> str:
    """Name a run after its config and what it computes, as the head of this file defines."""
    tests = experiment.tests
    chosen = flatten(json.loads(json.dumps(non_defaults(experiment), default=section_to_json)))
    chosen |= {"probe.needles": tests.needles, "probe.digits": tests.digits, "probe.answer_budget": tests.budget}
    chosen["train.precision"] = experiment.train.precision
    # probe.batch may change at a resume, and yet is part of the name: in bfloat16 some answers depend on it.
    named = {key: chosen[key] for key in chosen if key == "probe.batch" or not key.startswith(FREE_TO_CHANGE)}
    named |= {f"plugins.{Path(path).name}": hash_plugin(Path(path)) for path in named.pop("plugins", ())}
    return f"{config}-{hash_json(named)[:8]}"


def fixed_settings(settings: Settings) -> Settings:
    """Return the settings that a resume must not change, by dotted name; none of them is the length of some schedules.

    Example:
        >>> [fixed_settings({"optim": {"schedule": name}, "train": {"tokens": 9}}) for name in ("cosine", "constant")]
        [{'optim.schedule': 'cosine', 'train.tokens': 9}, {'optim.schedule': 'constant'}]
    """
    fixed = {key: value for key, value in flatten(settings).items() if not key.startswith(FREE_TO_CHANGE)}
    # Steps of these schedules do not depend on the length of the run, until it decays.
    if fixed.get("optim.schedule", "cosine") != "cosine":
        fixed.pop("train.tokens", None)
    return fixed


def find_changes(before: Settings, now: Settings) -> Iterator[tuple[str, Any, Any]]:
    """List the settings that differ, each with both values, except those that may.

    Example:
        >>> before, now = {"optim": {"lr": 1.0}, "run": {"name": "a"}}, {"optim": {"lr": 2.0}, "run": {"name": "b"}}
        >>> list(find_changes(before, now))
        [('optim.lr', 1.0, 2.0)]
    """
    old, new = fixed_settings(before), fixed_settings(now)
    for key in sorted(old.keys() | new.keys()):
        if key == "train.tokens" and not (key in old and key in new):
            continue  # The schedules differ, which is an error of its own.
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def digest_of_run(settings: Settings, data: str) -> str:
    """Hash what identifies a run: its settings but those that may change at a resume, and the digest of its data."""
    # runs of earlier versions have this setting in their digest
    fixed = fixed_settings(settings) | {"data.schedule": None}
    for name, value in ADDED.items():
        if fixed.get(name) == value:
            fixed.pop(name, None)
    return hash_json([fixed, data])
