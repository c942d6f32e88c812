"""The command line of every evaluation: the options that all share, those of a command, and how results are shown.

Shared are -o FOLDER, --plot, --json, --distance and --frequency. MODEL and RUN may be patterns, as "runs/mini-*" or
"hf:OWNER/NAME@step*". A command that measures one model measures each of several in turn.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from eval.engine.methods import expand, is_model, method_overrides, name_paths, split_words
from eval.engine.text import RESULTS, Result, document, to_jsonable
from lab.config.settings import Settings
from lab.core import chart, command, launch, schema, yaml
from lab.core.arguments import read_options, settings_lines
from lab.core.command import Arguments, show
from lab.core.errors import ConfigError, abbreviate
from lab.core.files import writing
from lab.core.types import Row
from lab.positions.methods import PositionConfig
from lab.runs.folder import RunFolder

MODEL = "{word}: MODEL must be the first argument; give a run folder, a checkpoint in it, or a Hugging Face folder"
MODELS = """
MODEL is a run folder, a checkpoint in it, or any causal model of transformers, a folder or hf:OWNER/NAME@REVISION
(docs/evaluation.md), or a pattern of these. Position methods that are named take the place of its own.
"""
OF_RUNS = ("--distance", "--frequency", "--plot")  # which no command of several runs takes


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec(command.CommandSpec):
    """What an evaluation takes; without `options` its settings are those of a run, read elsewhere."""

    name: str = ""
    positional: int | None = None
    flags: Mapping[str, str] = field(
        default_factory=lambda: {
            "--plot": "Plot the picture next to the results.",
            "--json": "Print one JSON object and nothing else: command, rows, files, pictures.",
        }
    )
    values: Mapping[str, str] = field(
        default_factory=lambda: {
            "-o": "Folder of results and pictures; default: eval/ of a run, or results/COMMAND-NAME.",
            "--frequency": "Frequency method in place of the model's own. [NAME or NAME:parameter=value,...]",
        }
    )
    lists: Mapping[str, str] = field(
        default_factory=lambda: {
            "--distance": "Distance method in place of the model's own; a name alone takes derived parameters. "
            "[NAME or NAME:parameter=value,...]"
        }
    )
    missing: str = MODEL
    stopped: str = command.CONTINUES
    several: bool = False
    """Whether one --distance may name several methods."""
    replaces: bool = True
    """Whether a single method of --distance replaces the model's own."""
    each: bool = True
    """Whether several models are measured one by one."""
    takes: Callable[[Path], object] = is_model
    """Which matches of a pattern are models."""

    def list_settings(self, everything: bool) -> list[str]:
        """Describe the command's own options, and the parameters of position methods."""
        lines = super().list_settings(everything)
        if "--distance" not in self.excluded:
            lines += settings_lines(PositionConfig, everything, prefix="position.", heading="Position methods")
        return lines


class Request(NamedTuple):
    """What a command line asks for; `overrides` are the model's position methods.

    `options` are the command's own, or where it has none all settings. `folder` is that of -o, `distances` the methods
    of a command that takes several.
    """

    model: Path
    options: Any
    overrides: Settings
    plots: bool
    folder: Path | None = None
    distances: tuple[str, ...] = ()
    positional: tuple[Path, ...] = ()

    def save(self, name: str, text: str, rows: Sequence[Row], make_chart: Callable[[], Any] | None = None) -> Result:
        """Return the result. -o writes its rows to FOLDER/NAME.jsonl, --plot plots NAME.png there or in results/.

        Raises: ConfigError if a file cannot be written.
        """
        files = []
        picture = None
        if make_chart is not None and self.plots:
            picture = (self.folder or RESULTS) / f"{name}.png"
            chart.save_chart(make_chart(), picture)
        if self.folder is not None:
            files = [self.folder / f"{name}.jsonl"]
            with writing(f"-o {self.folder}", "folder"):
                RunFolder(self.folder).write_records(files[0].name, map(to_jsonable, rows))
        return Result(text, rows, files, picture)


def run_evaluation(spec: EvaluationSpec, measure: Callable[[Request], Result], arguments: Sequence[str]) -> int:
    """Read the command line, measure, print the results, and return the exit status."""

    def work(args: Arguments) -> int:
        launch.check_copies(f"start one with probe-lab {spec.name}")
        results: list[Result] = []
        # stdout contains only results where they are one JSON object.
        with contextlib.redirect_stdout(sys.stderr) if args.options.json else contextlib.nullcontext():
            for request in read_requests(args, spec):
                results.append(measure(request))
                if not args.options.json:
                    show(results[-1].full_text)
        if args.options.json:
            show(document(spec.name, results))
        return command.EXIT_BAD_INPUT if getattr(sys.stdout, "lost", False) else 0

    if spec.missing == MODEL:
        spec = dataclasses.replace(spec, description=f"{spec.description}{MODELS}")
    return command.run(spec, work, arguments)


def read_requests(args: Arguments, spec: EvaluationSpec) -> Iterator[Request]:
    """Read a command line: a request for each model, or one for all.

    Raises: ConfigError with a line for every error, options named as they are written.
    """
    models = expand(args.positional, spec.takes)
    settings = dict(args.settings)
    if args.options.plot:
        chart.altair()  # a missing package is an error before time is spent
    distances = split_words(",".join(args.options.distance or ()))
    methods = {"distance": ",".join(distances), "frequency": args.options.frequency}
    excluded = [option for option in spec.excluded if getattr(args.options, option.lstrip("-"))]
    errors = [f"{option}: is no option of this command; leave it out" for option in excluded]
    # Position methods are the model's; the settings that remain are the command's own.
    overrides: Settings = {}
    if "--distance" not in spec.excluded:
        for key in args.settings:
            if key.partition(".")[0] == "position":
                overrides |= yaml.flatten({key: settings.pop(key)})
    for name, method in methods.items():
        ignored = [key for key in overrides if method and key.startswith(f"position.{name}.")]
        errors += [f"--{key}: would be ignored next to --{name}; remove one of them" for key in ignored]
    if len(distances) > 1 and not spec.several:
        errors.append(f"--distance={abbreviate(methods['distance'])}: give one; probe-lab probe compares several")
    options: Any = settings
    if spec.options is not None:
        options = read_options(spec.options, settings, errors)
    elif errors:
        raise ConfigError(*errors)
    if len(distances) != 1 or not spec.replaces:
        del methods["distance"]
    measured = models if spec.each else models[:1] or [Path()]
    for model, own_name in zip(measured, name_paths(measured), strict=True):
        position = {**overrides, **method_overrides(model, methods, longest(options))}
        folder = args.options.o and Path(args.options.o)
        if folder and len(measured) > 1:
            folder /= own_name
        yield Request(model, options, position, args.options.plot, folder, tuple(distances), tuple(models))


def longest(options: Any) -> int | None:
    """Return the longest text that options name, in tokens."""
    for name in ("lengths", "length", "max_length", "window", "tokens"):
        if value := getattr(options, name, None):
            return int(np.max(value))
    return None


class SampledOptions(schema.Section):
    """Options of all measurements of a model."""

    seed: schema.Seed = 0
    """Seed of all samples."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


class TextOptions(SampledOptions):
    """Options of measurements on texts."""

    texts: schema.Tests = 10
    """Texts, pieces of the source that do not overlap."""
    text: schema.PathText | None = None
    """Source of the texts: a .txt, .md, .py, .json or .jsonl file, or a folder or a pattern of these; default: a run's
    corpus: held-out documents, fresh filler."""


class CellOptions(SampledOptions):
    """Options of measurements that are made of cells."""

    batch: schema.Tests | None = None
    """Rows that the model runs side by side; default: up to 16384 tokens together, 64 rows at most."""

    def rows(self, length: int) -> int:
        """Choose how many rows of a length run side by side.

        Example:
            >>> CellOptions().rows(128), CellOptions().rows(8192), CellOptions(batch=3).rows(128)
            (64, 2, 3)
        """
        return self.batch or max(1, min(64, 16_384 // length))
