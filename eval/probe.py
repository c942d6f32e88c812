"""Probe a trained model's effective context length with four needles.

    python -m eval.probe MODEL [--setting=value ...] [-o FOLDER] [--plot]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. The settings are those of the run's own `probe` section, and its position methods, any of which can be
changed; a Hugging Face folder has the section's defaults, steps of an eighth of its window, and needs a haystack:

    python -m eval.probe runs/cpu_demo
    python -m eval.probe runs/cpu_demo --tests=500 --max_length=320 --step=16 --plot
    python -m eval.probe runs/cpu_demo --tests=500 --sequential --error=0.01
    python -m eval.probe runs/cpu_demo --thresholds=[0.5,0.9] --confidence=0.99
    python -m eval.probe runs/cpu_demo --protocol=string --haystack=essays.txt
    python -m eval.probe runs/cpu_demo/checkpoints/tokens-000004000000 --haystack=essays.txt --seed=1
    python -m eval.probe runs/cpu_demo --position.distance.method=rerope --position.distance.window=96
    python -m eval.probe models/Llama-3.1-8B --haystack=essays.txt --protocol=string --sequential --step=8192

--sequential stops a length as soon as the verdict that all tests would give is known up to --error. --protocol=string
takes the wording, numbers, depths and counting of papers/string.txt (eval/string_needles.py says what differs).

Writes probes.jsonl and cases/ as training does, and with --plot probe.png, to FOLDER; left out, to
eval/probe-TOKENS-HASH in the run folder, or in runs/probe-NAME for a Hugging Face folder. Every finished test is kept
in tests-TOKENS-KEY.jsonl, in FOLDER or beside it: after Ctrl-C (exit status 75) or a crash the same command goes on,
and a command that asks for more tests, lengths or thresholds takes up those that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.command import WRONG, guarded, start
from eval.config import ProbeConfig
from eval.effective_length import LengthResult, NeedleProbe
from eval.finished_tests import FinishedTests
from eval.haystacks import load_haystack, read_text
from eval.measuring import device_for
from eval.needle_tests import EIGHTHS, finished_tests, needle_probe, source_of
from eval.probe_picture import draw_probe
from eval.probe_records import length_record, summary_record
from eval.probe_table import table
from eval.subject import Subject, as_subject
from lab.assembly import training_device
from lab.config import DEFAULT_DIGITS, DEFAULT_NEEDLES
from lab.errors import ConfigError
from lab.loading import OpenedModel, open_model
from lab.model.huggingface_config import NAME
from lab.processes import set_threads
from lab.runs.folder import RunFolder
from lab.schema import NonNegative, Section
from lab.settings import Raw, parse_overrides, take_option, validated

OF_TRAINING = ("every_tokens", "loss_tokens")  # settings of the probe section
FLAGS = ("--sequential",)  # settings that need no value on this command line


@dataclass(frozen=True, kw_only=True)
class FolderSettings(Section):
    """What can be set about a probe of a Hugging Face folder."""

    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """Settings of the probe."""
    seed: NonNegative = 0
    """Seed of the tests."""


def probe_model(place: Path, settings: dict[str, Any], output: Path | None, *, plots: bool = False) -> str:
    """Probe a model, write the records, and return the table to print.

    Raises: LabError; KeyboardInterrupt, which says how to go on.
    """
    if (place / NAME).is_file():
        subject, probe = open_folder(place, settings)
    else:
        subject, probe = open_run(place, settings)
    probe.check_haystack(probe.lengths[-1])
    where = output or default_output(subject, probe)
    finished = finished_tests(subject, probe, output or where.parent)
    results = run(subject, probe, finished)
    records = write(where, subject, probe, results)
    lines = [table(results, probe.config, records[-1]), f"written to {where}"]
    if plots:
        model = subject.model
        trained = "" if model.consumed_tokens is None else f"; {model.consumed_tokens:,} tokens"
        draw_probe(results, records[-1], f"{model.name}: {model.method}{trained}", probe.window, where / "probe.png")
        lines.append(f"picture: {where / 'probe.png'}")
    return "\n".join(lines)


def open_run(place: Path, settings: dict[str, Any]) -> tuple[Subject, NeedleProbe]:
    """Open a run, or a checkpoint of one, and its own probe with some settings changed.

    Raises: LabError.
    """
    model = open_model(place, overrides_of(settings))
    experiment = model.experiment
    assert experiment is not None, "a run's folder"
    set_threads(experiment.train.threads)
    device = training_device(experiment)
    model.decoder.to(device)
    subject = as_subject(model, place, device)
    haystack = load_haystack(experiment.probe.haystack, experiment.data, subject.tokenizer)
    source = source_of(subject, settings.get("haystack"))
    return subject, needle_probe(subject, experiment.probe, haystack, experiment.run.seed, source)


def overrides_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Name the settings of this command as those of a run; another protocol comes with its own sizes.

    Example:
        >>> overrides_of({"tests": 9, "seed": 1, "protocol": "string", "digits": 6})
        {'probe.tests': 9, 'run.seed': 1, 'probe.protocol': 'string', 'probe.digits': 6, 'probe.needles': None}
    """
    names = {key: "run.seed" if key == "seed" else f"probe.{key}" for key in settings if "position." not in key}
    overrides = {names.get(key, key): value for key, value in settings.items()}
    sizes = ("probe.needles", "probe.digits") if "protocol" in settings else ()
    return overrides | {size: None for size in sizes if size not in overrides}


def open_folder(place: Path, settings: dict[str, Any]) -> tuple[Subject, NeedleProbe]:
    """Open a Hugging Face folder and a probe of it.

    Raises: LabError.
    """
    methods = {key: value for key, value in settings.items() if "position." in key}
    raw = Raw({}, str(place))
    raw.override({key if key == "seed" else f"probe.{key}": settings[key] for key in settings if key not in methods})
    given = validated(FolderSettings, raw)
    device = device_for("auto")
    subject = as_subject(open_model(place, methods, device=device), place, device)
    config = complete(given.probe, subject.model, has_step="step" in settings)
    if config.haystack is None:
        raise ConfigError("--haystack: must be set, a Hugging Face folder has no corpus of its own; give a text file")
    haystack, source = read_text(Path(config.haystack), "--haystack"), f"--haystack={config.haystack}"
    return subject, needle_probe(subject, config, haystack, given.seed, source)


def complete(config: ProbeConfig, model: OpenedModel, *, has_step: bool) -> ProbeConfig:
    """Fill in what a run's config reader would: sizes of the numbers, and steps that suit the window.

    Raises: ConfigError for a last length below the step.
    """
    step = config.step if has_step or model.train_len is None else max(1, model.train_len // EIGHTHS)
    sizes = {"needles": config.needles or DEFAULT_NEEDLES, "digits": config.digits or DEFAULT_DIGITS}
    try:
        return replace(config, step=step, **sizes)
    except ConfigError as error:
        raise ConfigError(*(f"probe.{fault}" for fault in error.faults)) from error


def run(subject: Subject, probe: NeedleProbe, finished: FinishedTests) -> list[LengthResult]:
    """Run all tests that are not finished yet.

    Raises: KeyboardInterrupt, which says how to go on.
    """
    results: list[LengthResult] = []
    try:
        with tqdm(total=len(probe.lengths) * probe.config.tests, desc="probe", unit="test") as bar:
            finished.report = bar.update
            for result in probe.run(subject.generate, memory=finished):
                results.append(result)
                bar.total -= probe.config.tests - result.tests
                bar.update(sum(r.tests for r in results) - bar.n)
                bar.set_postfix_str(f"{result.length} tokens: {result.accuracy:.2f}")
    except KeyboardInterrupt as signal_:
        kept = f"{len(finished.rows):,} finished tests are in {finished.path}"
        raise KeyboardInterrupt(f"stopped; {kept}; the same command goes on") from signal_
    return results


def default_output(subject: Subject, probe: NeedleProbe) -> Path:
    """Name the output by the checkpoint and the probe's settings, so that the same probe lands in the same place."""
    model = subject.model
    settings = {**asdict(probe.config), "seed": probe.seed, "method": model.method, "weights": subject.weights}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    home = Path("runs") / f"probe-{model.name}" if model.folder is None else model.folder / "eval"
    return home / f"probe-{model.consumed_tokens or 0:015d}-{digest}"


def write(output: Path, subject: Subject, probe: NeedleProbe, results: Sequence[LengthResult]) -> list[dict[str, Any]]:
    """Write the records that training's probe writes, and return them; the last is the summary."""
    records = [length_record(probe, result, subject.row) for result in results]
    records.append(summary_record(probe, results, subject.row))
    folder = RunFolder(output)
    folder.write_records("probes.jsonl", records)
    folder.write_cases(subject.model.consumed_tokens or 0, [case for result in results for case in result.cases])
    return records


def spell_out(words: Sequence[str]) -> list[str]:
    """Write out the settings that need no value.

    Example:
        >>> spell_out(["runs/x", "--sequential", "--error=0.01"]), spell_out(["--sequential", "false"])
        (['runs/x', '--sequential=true', '--error=0.01'], ['--sequential', 'false'])
    """
    following = [*words, "-"][1:]
    bare = [word in FLAGS and after.startswith("-") for word, after in zip(words, following)]
    return [f"{word}=true" if is_bare else word for word, is_bare in zip(words, bare, strict=True)]


def measure(arguments: Sequence[str]) -> str:
    """Read the command line, and return what to print.

    Raises: LabError; KeyboardInterrupt, which says how to go on.
    """
    words = list(arguments)
    place, plots = take_option(words, "-o"), "--plot" in words
    words = spell_out([word for word in words if word != "--plot"])
    if not words or words[0].startswith("-"):
        named = words[0] if words else "MODEL"
        raise ConfigError(
            f"{named}: MODEL must be the first argument, a run folder, a checkpoint in it, or a Hugging Face folder"
        )
    settings = parse_overrides(words[1:])
    rule = "is a setting of training, which no probe of a checkpoint reads; leave it out"
    faults = [f"--{name}={settings[name]}: {rule}" for name in OF_TRAINING if name in settings]
    if faults:
        raise ConfigError(*faults)
    return probe_model(Path(words[0]), settings, Path(place) if place else None, plots=plots)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else WRONG
    return guarded(lambda: measure(arguments))


if __name__ == "__main__":
    start(main)
