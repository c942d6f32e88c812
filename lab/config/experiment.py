"""The whole experiment as one typed value, composed of the parts' configs; no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.config.faults import context_faults, length_faults, mask_faults, position_faults, shape_faults
from lab.config.sections import RunConfig, StartConfig, TrackConfig, TrainConfig
from lab.data.config import Bpe, DataConfig, Synthetic
from lab.masks import Causal, MaskConfig
from lab.model.config import DecoderConfig, OptimConfig
from lab.positions import Frequencies
from lab.positions.methods import PositionConfig
from lab.probe.config import NEEDLES, ProbeConfig, ProbeSection, completed
from lab.schema import Section
from lab.settings import format_yaml
from lab.shape.config import Gaps, ShapeConfig
from lab.skip.methods import SkipConfig

LOGGED_EIGHTHS = (1, 2, 4, 6)  # of the window, where f is logged


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
    probe: ProbeSection = field(default_factory=ProbeSection)
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
        faults += context_faults(train, self.model, data)
        faults += length_faults(self.reach, self.skip, data, probe)
        faults += position_faults(self.position, self.model, data, train, probe)
        faults += mask_faults(self.mask, self.skip, data, self.position, has_gaps=self.has_gaps)
        faults += shape_faults(self.shape, self.skip, data, self.mask, reach=self.reach)
        needles = self.probed({}).get("needles", NEEDLES)
        if probe.required > needles:
            faults.append(f"probe.required={probe.required}: must be <= {needles}, the numbers of a test; lower it")
        if data.held_out_frac == 0 and (probe.loss_tokens or (probe.haystack is None and not self.is_synthetic)):
            faults.append(
                "data.held_out_frac=0.0: the probe needs held-out text; raise it, or set probe.loss_tokens=0 and "
                "probe.haystack"
            )
        return faults

    def probed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of the probe, some of them as given; not checked."""
        corpus = self.data.corpus
        sizes = {"needles": corpus.needles, "digits": corpus.digits} if isinstance(corpus, Synthetic) else {}
        return completed(self.probe, sizes, given)

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
    def logged_positions(self) -> dict[str, int]:
        """Relative positions whose f is logged, by the name of the column.

        Fractions of what the counter holds, L, have the same names at any window: f_at_0.5L is f(L // 2).
        """
        return {f"f_at_{eighths / 8:g}L": eighths * self.reach // 8 for eighths in LOGGED_EIGHTHS}

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as nested dicts of plain values."""
        return dataclasses.asdict(self, dict_factory=lambda items: {k: plain(v) for k, v in items})

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


def plain(value: Any) -> Any:
    """Turn tuples into lists, which YAML can hold."""
    return list(value) if isinstance(value, tuple) else value
