"""Measure which share of numbers a model finds by their distance, and how far back it reaches.

    python -m eval.distance MODEL [--option=value ...] [--distance=METHOD,...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Each test hides one number an exact number of tokens before the end of the prompt; prompt and answer
fill the training window (lab/probe/one_number.py). Beside the share found, with exact limits, stand the mean
log-probability of the right number and f, how often training saw the distance; reach is where a non-increasing fit of
the share crosses the threshold (lab/probe/effective_distance.py):

    python -m eval.distance runs/cpu_demo --plot
    python -m eval.distance runs/cpu_demo --distance=plain,string:shift=64,window=32,dca --plot
    python -m eval.distance runs/cpu_demo --distances=64,96,128,160 --tests=400 --threshold=0.5
    python -m eval.distance runs/cpu_demo --position.distance.method=rerope --position.distance.window=96
    python -m eval.distance runs/cpu_demo --prompt=96,128,160 --plot
    python -m eval.distance runs/cpu_demo --window=384 --distance=string --plot
    python -m eval.distance models/Llama-3.1-8B --haystack=essays.txt --points=6 --tests=50
    python -m eval.distance "hf:OWNER/NAME@step*" --haystack=essays.txt --tokens_per_step=2e6 -o series --plot

Every method of --distance is put the same tests. A name alone takes the parameters of eval.methods.
With --prompt the distances are also tested in shorter prompts, to tell distance from the length of the prompt: rows of
their own, found_by_prompt, that have no part in reach.
Several models, such as the revisions of a public model or the checkpoints of a folder, are measured in turn; a table
and with --plot a picture of their reach follow (eval/distance/over_models.py). A revision that FOLDER holds the results
of is neither downloaded nor measured again.

Prints a table for each method and writes distance-TOKENS-HASH.jsonl, a line for each distance and one for reach, to
eval/ of the run folder (runs/distance-NAME for a Hugging Face folder) or FOLDER; the picture lies beside it. The
four-needle tests that training recorded in cases/, up to the window, are a series of their own under the run's method.
Every finished test is kept in tests-TOKENS-KEY.jsonl: after Ctrl-C (exit status 75) or a crash the same command
continues.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from eval.distance.over_models import asked, over_models, path_on_hub, recorded
from eval.distance.picture import draw_distances
from eval.distance.prompts import left_out, rows_of, shorter_prompts
from eval.distance.series import Row, Series, four_needles, key_of
from eval.distance.table import table
from eval.engine.command import Form, Request, run
from eval.engine.methods import read_distance
from eval.engine.needle_tests import FinishedTests, counts_of, haystack_of
from eval.engine.rows import Found, shortened, write_rows
from eval.engine.subject import Subject, note_idle, note_idle_distance, open_subject, result_folder
from lab.bars import Bar
from lab.command import start
from lab.data.tokenizer import check_ids
from lab.errors import ConfigError, DataError
from lab.positions import Distance
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe, DistanceResult
from lab.probe.records import distance_record, reach_record
from lab.schema import Length, PathText, Section, Seed, Share, Tests

KIND = "distance"
OF_PROBE = {
    "distances": "distances",
    "points": "distance_points",
    "tests": "distance_tests",
}  # the probe section's names


@dataclass(frozen=True, kw_only=True)
class DistanceOptions(Section):
    """Options of this command."""

    distances: tuple[Length, ...] | None = None
    """Distances in tokens, rising, with commas between them; left out, `points` of them."""
    points: Annotated[int, Ge(2)] | None = None
    """Number of distances, equally spaced from a quarter of the window to the largest that fits; left out, as in the
    run's own probe, or 14."""
    window: Length | None = None
    """Tokens that prompt and answer fill; left out, the training window."""
    prompt: tuple[Length, ...] | None = None
    """Also in prompts that take this many tokens with the answer, with commas between several; distances without room
    are left out."""
    tests: Tests | None = None
    """Tests at each distance; left out, as in the run's own probe, or 100."""
    digits: Annotated[int, Ge(2), Le(9)] | None = None
    """Digits of each number; left out, as in the run's own probe, or 6."""
    haystack: PathText | None = None
    """Text file to hide the numbers in; left out, as in the run's own probe. A Hugging Face folder needs one."""
    threshold: Share = 0.8
    """Share of numbers that must be found within reach."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Probability with which limits hold the true share, at least."""
    seed: Seed | None = None
    """Seed of the tests; left out, the run's probe.seed, or 0."""
    batch: Tests | None = None
    """Tests that generate side by side; left out, as in the run's own probe, or 64."""
    tokens_per_step: Annotated[float, Gt(0)] | None = None
    """Tokens of a training step, to show the reach of several models by tokens; their steps are in their names."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


def measure(request: Request) -> Found:
    """Run what is not finished yet, write all down, and return the tables.

    Raises: LabError, KeyboardInterrupt.
    """
    options: DistanceOptions = request.options
    if options.tokens_per_step is not None and len(request.places) < 2:
        raise ConfigError("--tokens_per_step: would be ignored with one model; give several, or leave it out")
    known = recorded(request)
    if known is not None:
        return known
    subject = open_subject(request)
    probe = make_probe(subject, options)
    shorter = shorter_prompts(probe, options.prompt or ())
    methods = choose_methods(request, subject, probe.test.window)
    folder = result_folder(KIND, request, subject)
    four = four_needles(subject, probe)
    series = []
    n_distances = sum(len(each.distances) for each in (probe, *shorter))
    with Bar(total=len(methods) * n_distances * probe.config.distance_tests, desc=KIND, unit="test") as bar:
        for method in methods:
            subject.model.decoder.distance = method
            results = run_all(subject, probe, folder, bar)
            rows = [row for each in shorter for row in rows_of(subject, each, run_all(subject, each, folder, bar))]
            series.append(summed(subject, probe, results, four, rows))
    names = [line.method for line in series]
    digest = shortened(json.dumps([names, probe.distances, asked(options)]))
    own_path = folder / f"{KIND}-{subject.model.consumed_tokens or 0:015d}-{digest}.jsonl"
    path = path_on_hub(request, folder) or own_path
    rows = [row for line in series for row in line.lines]
    write_rows(path, rows, f"-o {folder}", "folder")
    title = f"{subject.model.name}, window {probe.test.window:,}; {probe.config.distance_tests} tests at each distance"
    lines = [title, *(table(line) for line in series), *left_out(probe, shorter), ""]
    picture = path.with_suffix(".png") if request.plots else None
    if picture is not None:
        draw_distances(series, title, probe.test.window, picture)
    return Found("\n".join(lines), rows, path, picture)


def make_probe(subject: Subject, options: DistanceOptions) -> DistanceProbe:
    """Build the tests; settings left out are those of the run's own probe.

    Raises: LabError, whose lines name options as they are written.
    """
    experiment, window = subject.model.experiment, options.window or subject.model.train_len
    if window is None:
        raise DataError("config.json: names no max_position_embeddings; add it, or give --window")
    own = ProbeConfig() if experiment is None else experiment.probe
    haystack, source = haystack_of(subject, options.haystack, own.haystack)
    shared = ("haystack", "threshold", "confidence", "batch", "digits", "seed")
    given: dict[str, Any] = {name: getattr(options, name) for name in shared if getattr(options, name) is not None}
    asked = {name: getattr(options, option) for option, name in OF_PROBE.items()}
    grid = {} if options.distances is None and options.points is None else {"distances": None, "distance_points": None}
    given |= grid | {name: value for name, value in asked.items() if value is not None}
    given = {"digits": own.sizes["digits"], "distance_tests": own.distance_tests or 100, **given}
    try:
        config = replace(own, **given)
        probe = DistanceProbe(
            config,
            subject.tokenizer,
            haystack,
            window=window,
            stop_id=subject.stop_id,
            device=subject.device,
            source=source,
        )
    except ConfigError as error:
        faults = [fault.removeprefix("probe.") for fault in error.faults]
        for option, name in OF_PROBE.items():
            faults = [fault.replace(name, option) for fault in faults]
        raise ConfigError(*(f"--{fault}" for fault in faults)) from error
    check_ids(probe.test.case(probe.distances[0], 0).prompt_ids, subject.vocab_size)
    return probe


def choose_methods(request: Request, subject: Subject, window: int) -> list[Distance]:
    """Return the distance methods asked for, or the model's own.

    Raises: ConfigError for one that is given twice.
    """
    own = subject.model.decoder.distance
    note_idle_distance(request.overrides, own, window)
    train_len = min(window, subject.model.train_len or window)
    methods = [read_distance(word, train_len, window) for word in request.distances]
    faults = [
        f"--distance={word}: is given twice; keep one"
        for place, word in enumerate(request.distances)
        if methods[place] in methods[:place]
    ]
    if faults:
        raise ConfigError(*faults)
    for word, method in zip(request.distances, methods, strict=True):
        note_idle(f"--distance={word}", method, window)
    return methods or [own]


def run_all(subject: Subject, probe: DistanceProbe, folder: Path, bar: Any) -> list[DistanceResult]:
    """Run the tests of one method that are not finished.

    Raises: KeyboardInterrupt, which says how to go on.
    """
    finished = FinishedTests(folder, subject.model.consumed_tokens or 0, key_of(subject, probe), "distance")
    bar.name(subject.model.method)
    known = [test for distance in probe.distances for test in finished.known(distance)]
    bar.known(sum(test < probe.config.distance_tests for test in known))
    finished.report = bar.update
    try:
        return list(probe.run(subject, store=finished))
    except KeyboardInterrupt as signal_:
        kept = f"{len(finished.rows):,} finished tests are in {finished.path}"
        raise KeyboardInterrupt(f"stopped; {kept}; the same command continues") from signal_


def summed(
    subject: Subject,
    probe: DistanceProbe,
    results: list[DistanceResult],
    four: dict[str, list[Row]],
    shorter: list[Row],
) -> Series:
    """Collect what was found under one method, with f from the model's counter."""
    about = {**subject.row, "metric": "found_by_distance"}
    counts = counts_of(subject)
    rows = [distance_record(probe, result, about, counts) for result in results]
    reach = {
        **subject.row,
        "metric": "reach",
        "threshold": probe.config.threshold,
        "confidence": probe.config.confidence,
    }
    reach |= {"n": probe.config.distance_tests, **reach_record(results, probe.config.threshold, counts)}
    return Series(subject.model.method, results, rows, reach, four.get(subject.model.method, []), shorter)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    form = Form(options=DistanceOptions, text="haystack", several=True)
    return run("eval.distance", __doc__, form, measure, arguments, together=over_models)


if __name__ == "__main__":
    start(main)
