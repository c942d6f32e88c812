"""Probe a run's newest checkpoint from Python; eval.probe does so from the command line, and keeps finished tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lab.command import parse_method
from lab.counts import SavedCounts
from lab.data.preparation import end_of_document
from lab.data.tokenizer import needed
from lab.loading import OpenedModel, open_model
from lab.model.generate import Ended, greedy
from lab.probe.config import ProbeConfig
from lab.probe.effective_length import NeedleProbe
from lab.probe.haystacks import load_haystack
from lab.probe.records import length_record, summary_record
from lab.schema import Section, override, validated
from lab.source import find_place
from lab.train.checkpoints import COUNTS, folder_name
from lab.train.choices import computes_in_bf16, training_device

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]


@dataclass(frozen=True)
class ProbeResult:
    """A probe's outcome.

    `table` has one row per length; `summary` is the record of the whole, as in probes.jsonl, and `cases` are all tests
    with their numbers, depths and answers.
    """

    table: pd.DataFrame
    summary: Record
    cases: list[Record]

    @property
    def effective_length(self) -> int | None:
        """Last length before the first that fails, in tokens; None where that is the first one."""
        length: int | None = self.summary["effective_length"]
        return length


def as_table(records: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Build a table of records, with the columns named, in this order, or all."""
    import pandas as pd

    return pd.DataFrame(list(records), columns=None if columns is None else list(columns))


def method_settings(kind: str, word: str | None) -> Record:
    """Read a position method, NAME or NAME:parameter=value,..., as settings of a run.

    Raises: ConfigError.
    Example:
        >>> method_settings("distance", "rerope:window=96")
        {'position.distance.method': 'rerope', 'position.distance.window': 96}
    """
    given = parse_method(word, kind) if word else {}
    return {f"position.{kind}.{name}": value for name, value in given.items()}


@dataclass(frozen=True, kw_only=True)
class ProbedAlone(Section):
    """The settings of a probe, without those of a run."""

    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """Settings of the probe."""


def open_probed(
    path: Path, settings: Mapping[str, Any], device: torch.device | str = "cpu"
) -> tuple[OpenedModel, ProbeConfig]:
    """Open a model and its own probe with some settings changed; dotted ones are position methods.

    Raises: LabError, whose lines name settings as a run's config does.
    """
    methods = {key: value for key, value in settings.items() if "position." in key}
    given = {key: value for key, value in settings.items() if key not in methods}
    hugging_face = find_place(path).is_hugging_face
    reach = {f"probe.{key}": given[key] for key in ("max_length", "step") if key in given and not hugging_face}
    model = open_model(path, {**methods, **reach}, device=device)
    values: dict[str, Any] = {} if model.experiment is None else {"probe": model.experiment.probed(given)}
    override(values, {f"probe.{key}": value for key, value in given.items()})
    return model, validated(ProbedAlone, values).probe


def probe_run(
    path: Path, distance: str | None, frequency: str | None, settings: Mapping[str, Any], columns: Iterable[str]
) -> ProbeResult:
    """Probe a run's newest checkpoint under its own position methods or others; `columns` are those of the table.

    Raises: LabError.
    """
    methods = {**method_settings("frequency", frequency), **method_settings("distance", distance)}
    model, config = open_probed(path, {**settings, **methods})
    experiment, tokenizer = model.experiment, needed(model.tokenizer)
    assert experiment is not None, "a run's folder"
    assert model.folder is not None, "a run's folder"
    device, stop_id = training_device(experiment), end_of_document(experiment.data, tokenizer)
    decoder, in_bf16 = model.decoder.to(device), computes_in_bf16(experiment, device)
    kept = None if "haystack" in settings else model.folder
    haystack = load_haystack(config.haystack, experiment.data, tokenizer, kept)
    window = experiment.data.window
    probe = NeedleProbe(config, tokenizer, haystack, window=window, stop_id=stop_id, device=device)

    def generate(prompts: torch.Tensor, n_tokens: int, ended: Ended | None = None) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16):
            return greedy(decoder, prompts, n_tokens, stop_id, ended=ended)

    consumed = model.consumed_tokens or 0
    file = model.folder / "checkpoints" / folder_name(consumed) / COUNTS
    counts = SavedCounts.read(file) if file.exists() else None
    about = {"model": model.name, "consumed_tokens": consumed, "method": model.method}
    results = list(probe.run(generate))
    records = [length_record(probe, result, about, counts) for result in results]
    cases = [case for result in results for case in result.cases]
    return ProbeResult(as_table(records, columns), summary_record(probe, results, about, counts), cases)
