"""Measure which numbers are found by depth and length, and in which third of the text failures lie.

    python -m eval.heatmap MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. The tests are the four-needle tests of eval.probe, as in arXiv:2410.18745, Figure 4: each number counts
at its own depth and length. The second table has the failures by third (Table 4), all with exact limits.

    python -m eval.heatmap runs/cpu_demo --plot
    python -m eval.heatmap runs/tiny_2k --lengths=512,1024,1536,2048 --depths=20 --tests=500 --plot
    python -m eval.heatmap runs/tiny_2k --position.distance.method=string --position.distance.shift=683
    python -m eval.heatmap models/Llama-3.1-8B --haystack=essays.txt --lengths=32768,131072

eval/heatmap/depths.py defines cells and thirds. Tests that training recorded in cases/ with the same
prompts, and those that eval.probe, eval.methods or an earlier call has finished, are not run again; every
test that is run is kept in tests-TOKENS-KEY.jsonl at once, so that after Ctrl-C (exit status 75) or a crash the same
command continues.

Prints two tables and writes heatmap-TOKENS-HASH.jsonl, a line for each cell and each third, to eval/ of the run folder
(runs/heatmap-NAME for a Hugging Face folder) or FOLDER; the picture lies beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from eval.engine.command import Form, Request, run
from eval.engine.needle_tests import (
    FinishedTests,
    NeedleOptions,
    finished_tests,
    make_probe,
    own_lengths,
    reuse_recorded,
    run_length,
)
from eval.engine.rows import Found, shortened, write_rows
from eval.engine.subject import Subject, note_idle_distance, open_subject, result_folder
from eval.heatmap.depths import depth_rows, peak, third_rows
from eval.heatmap.picture import draw_heatmap
from eval.heatmap.table import found_table, thirds_table
from lab.bars import Bar
from lab.command import start
from lab.errors import ConfigError
from lab.probe.curve import LengthResult
from lab.probe.effective_length import NeedleProbe, Row
from lab.probe.records import tests_of

KIND = "heatmap"
CELLS_PER_NEEDLE = 3


@dataclass(frozen=True, kw_only=True)
class HeatmapOptions(NeedleOptions):
    """Options of this command. Left out, the lengths are those of the run's own probe, else eighths of the window."""

    depths: Annotated[int, Ge(1), Le(200)] | None = None
    """Depths, equal parts of the text's first 99%, a whole number of them to a needle; left out, three to a needle."""


def measure(request: Request) -> Found:
    """Run the unfinished tests, write the results, and return the tables.

    Raises: LabError, KeyboardInterrupt.
    """
    options: HeatmapOptions = request.options
    subject = open_subject(request)
    probe = make_probe(subject, options)
    depths = choose_depths(probe, options)
    lengths = sorted(options.lengths or own_lengths(subject, probe))
    probe.check_haystack(lengths[-1])
    note_idle_distance(request.overrides, subject.model.decoder.distance, lengths[-1])
    folder = result_folder(KIND, request, subject)
    finished = finished_tests(subject, probe, folder)
    recorded = reuse_recorded(subject, probe, finished, lengths)
    results = run_all(subject, probe, lengths, finished)
    tests = {length: result.cases for length, result in results.items()}
    about = describe(subject, probe, depths, options.confidence)
    cells = {n: depth_rows(rows, probe.protocol.found, depths, options.confidence) for n, rows in tests.items()}
    thirds = {n: third_rows(rows, probe.protocol.found, probe.seed, options.confidence) for n, rows in tests.items()}
    path = folder / f"{KIND}-{subject.model.consumed_tokens or 0:015d}-{digest({**about, 'lengths': lengths})}.jsonl"
    rows = all_rows(about, results, cells, thirds, probe)
    write_rows(path, rows, f"-o {folder}", "folder")
    what = f"{probe.config.protocol} protocol, {probe.config.tests} tests a length"
    title = f"{subject.model.name}: {subject.model.method}; {what}"
    lines = [title, "", "numbers found (%)", found_table(cells), "", thirds_table(tests, thirds, options.confidence)]
    lines += [f"tests taken from the run's cases/: {recorded:,}"] * (recorded > 0)
    picture = path.with_suffix(".png") if request.plots else None
    if picture is not None:
        draw_heatmap(cells, thirds, title, subject.model.train_len, picture)
    return Found("\n".join(lines), rows, path, picture)


def choose_depths(probe: NeedleProbe, options: HeatmapOptions) -> int:
    """Choose the depths, a whole number of them to a needle.

    Raises: ConfigError.
    """
    depths = options.depths or CELLS_PER_NEEDLE * probe.needles
    if depths % probe.needles:
        near = max(1, round(depths / probe.needles)) * probe.needles
        rule = f"must be a multiple of the {probe.needles} needles, each of which has depths of its own"
        raise ConfigError(f"--depths={depths}: {rule}; use {near}")
    return depths


def run_all(
    subject: Subject, probe: NeedleProbe, lengths: Sequence[int], finished: FinishedTests
) -> dict[int, LengthResult]:
    """Run the unfinished tests of every length."""
    out = {}
    with Bar(total=len(lengths) * probe.config.tests, desc=KIND, unit="test") as bar:
        finished.report = bar.update
        for done, length in enumerate(lengths, start=1):
            bar.name(f"{length:,} tokens")
            out[length] = run_length(subject, probe, length, finished)
            bar.update(done * probe.config.tests - bar.n)
    return out


def describe(subject: Subject, probe: NeedleProbe, depths: int, confidence: float) -> dict[str, Any]:
    """Describe what the rows measure, on what, and with what."""
    return {
        **subject.row,
        **tests_of(probe),
        "tests": probe.config.tests,
        "depths": depths,
        "confidence": confidence,
    }


def digest(settings: dict[str, Any]) -> str:
    """Hash settings for file names; the commit and the machine are not among them."""
    kept = {name: value for name, value in settings.items() if name not in ("commit", "hardware")}
    return shortened(json.dumps(kept, sort_keys=True))


def all_rows(
    about: dict[str, Any],
    results: dict[int, LengthResult],
    cells: dict[int, list[Row]],
    thirds: dict[int, list[Row]],
    probe: NeedleProbe,
) -> list[Row]:
    """Write every cell and every third; `seconds` are those of all tests of the length."""
    out = []
    for length, result in results.items():
        shared = {**about, "length": length, "seconds": result.seconds}
        out += [{**shared, "metric": "found_by_depth", **row} for row in cells[length]]
        summary = {"metric": "failures_by_third", "accuracy": result.accuracy, "peak": peak(thirds[length])}
        out += [{**shared, **summary, **row} for row in thirds[length]]
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.heatmap", __doc__, Form(options=HeatmapOptions, text="haystack"), measure, arguments)


if __name__ == "__main__":
    start(main)
