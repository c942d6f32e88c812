"""Probe a trained model's effective context length with four needles.

    python -m eval.probe MODEL [--setting=value ...] [-o FOLDER] [--plot]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. The settings are those of the run's own `probe` section, and its position methods, any of which can be
changed; a Hugging Face folder has the section's defaults, steps of an eighth of its window, and needs a haystack:

    python -m eval.probe runs/cpu_demo
    python -m eval.probe runs/cpu_demo --tests=500 --max_length=320 --step=16 --plot
    python -m eval.probe runs/cpu_demo --tests=500 --sequential --error=0.01
    python -m eval.probe runs/cpu_demo --thresholds=[0.5,0.9] --confidence=0.99
    python -m eval.probe runs/cpu_demo/checkpoints/tokens-000000004000000 --haystack=essays.txt --seed=1
    python -m eval.probe runs/cpu_demo --distance=rerope:window=96
    python -m eval.probe models/Llama-3.1-8B --haystack=PaulGrahamEssays.json --protocol=released_llama31 --step=8192

--sequential stops a length as soon as the verdict that all tests would give is known up to --error.
--protocol=released and released_llama31 run the tests of the script released with arXiv:2410.18745, prompt for prompt.

Writes probes.jsonl and cases/ as training does, and with --plot probe.png, to FOLDER; left out, to
eval/probe-TOKENS-HASH in the run folder, or in runs/probe-NAME for a Hugging Face folder. Every finished test is kept
in tests-TOKENS-KEY.jsonl, in FOLDER or beside it: after Ctrl-C (exit status 75) or a crash the same command continues,
and a command that asks for more tests, lengths or thresholds reuses the existing ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from eval.engine.command import Form, Request, run
from eval.engine.needle_tests import EIGHTHS, FinishedTests, counts_of, finished_tests, haystack_of, needle_probe
from eval.engine.rows import Found, shortened
from eval.engine.subject import Subject, as_subject, device_for
from eval.probe.picture import draw_probe
from eval.probe.table import table
from lab.bars import Bar
from lab.command import bare_settings, settings_lines, start
from lab.errors import ConfigError
from lab.launch import set_threads
from lab.probe.config import ProbeConfig
from lab.probe.curve import LengthResult
from lab.probe.effective_length import NeedleProbe
from lab.probe.records import length_record, summary_record
from lab.probing import open_probed
from lab.train.choices import training_device
from lab.train.folder import RunFolder

OF_TRAINING = ("every_tokens", "loss_tokens", "max_seconds")  # settings of the probe section
OF_DISTANCE = ("distances", "distance_points", "distance_tests")


def probe_model(place: Path, settings: dict[str, Any], output: Path | None, *, plots: bool = False) -> Found:
    """Probe a model, write the records, and return the table.

    Raises: LabError; KeyboardInterrupt, with a line on how to continue.
    """
    subject, probe = open_probe(place, settings)
    probe.check_haystack(probe.lengths[-1])
    where = output or default_output(subject, probe)
    finished = finished_tests(subject, probe, output or where.parent)
    results = run_all(subject, probe, finished)
    records = write(where, subject, probe, results)
    picture, model = where / "probe.png" if plots else None, subject.model
    if picture is not None:
        trained = "" if model.consumed_tokens is None else f"; {model.consumed_tokens:,} tokens"
        draw_probe(results, records[-1], f"{model.name}: {model.method}{trained}", probe.window, picture)
    return Found(table(results, probe.config, records[-1]), records, where, picture)


def open_probe(place: Path, settings: dict[str, Any]) -> tuple[Subject, NeedleProbe]:
    """Open a model, and its own probe with some settings changed; steps suit the window of a Hugging Face folder.

    Raises: LabError.
    """
    model, config = open_probed(place, settings)
    experiment, own = model.experiment, None
    device = device_for("auto")
    if experiment is not None:
        set_threads(experiment.train.threads)
        device, own = training_device(experiment), experiment.probe.haystack
    elif "step" not in settings and model.train_len is not None:
        config = replace(config, step=max(1, model.train_len // EIGHTHS))
    model.decoder.to(device)
    subject = as_subject(model, place, device)
    haystack, source = haystack_of(subject, settings.get("haystack"), own)
    return subject, needle_probe(subject, config, haystack, source)


def run_all(subject: Subject, probe: NeedleProbe, finished: FinishedTests) -> list[LengthResult]:
    """Run all tests that are not finished yet.

    Raises: KeyboardInterrupt, with a line on how to continue.
    """
    results: list[LengthResult] = []
    try:
        with Bar(total=len(probe.lengths) * probe.config.tests, desc="probe", unit="test") as bar:
            finished.report = bar.update
            for result in probe.run(subject.generate, store=finished):
                results.append(result)
                bar.total -= probe.config.tests - result.tests
                bar.update(sum(r.tests for r in results) - bar.n)
                bar.name(f"{result.length} tokens: {result.accuracy:.2f}")
    except KeyboardInterrupt as signal_:
        kept = f"{len(finished.rows):,} finished tests are in {finished.path}"
        raise KeyboardInterrupt(f"stopped; {kept}; the same command continues") from signal_
    return results


def default_output(subject: Subject, probe: NeedleProbe) -> Path:
    """Name the output by the checkpoint and the probe's settings, so that the same probe has the same output."""
    model = subject.model
    settings = {**asdict(probe.config), "method": model.method, "weights": subject.weights}
    digest = shortened(json.dumps(settings, sort_keys=True))
    home = Path("runs") / f"probe-{model.name}" if model.folder is None else model.folder / "eval"
    return home / f"probe-{model.consumed_tokens or 0:015d}-{digest}"


def write(output: Path, subject: Subject, probe: NeedleProbe, results: Sequence[LengthResult]) -> list[dict[str, Any]]:
    """Write the records that training's probe writes, and return them; the last is the summary."""
    counts = counts_of(subject)
    records = [length_record(probe, result, subject.row, counts) for result in results]
    records.append(summary_record(probe, results, subject.row, counts))
    folder = RunFolder(output)
    folder.write_records("probes.jsonl", records)
    folder.write_cases(subject.model.consumed_tokens or 0, [case for result in results for case in result.cases])
    return records


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def measure(request: Request) -> Found:
        given = request.options
        rule = "is a setting of training, which no probe of a checkpoint reads; leave it out"
        rules = dict.fromkeys(OF_TRAINING, rule)
        rules |= dict.fromkeys(OF_DISTANCE, "belongs to one-number tests; use python -m eval.distance")
        faults = [f"--{name}={given[name]}: {rules[name]}" for name in rules if name in given]
        if faults:
            raise ConfigError(*faults)
        return probe_model(request.model, given, request.folder, plots=request.plots)

    def settings() -> list[str]:
        names = {item.name for item in fields(ProbeConfig)} - {*OF_TRAINING, *OF_DISTANCE}
        return settings_lines(ProbeConfig, names)

    form = Form(text="haystack", bare=bare_settings(ProbeConfig))
    return run("eval.probe", __doc__, form, measure, arguments, settings=settings)


if __name__ == "__main__":
    start(main)
