"""The command line of every evaluation: the options that all share, those of a command, and how results are shown.

Shared are -o FOLDER, --plot, --json, --distance and --frequency. MODEL and RUN may be patterns, as "runs/mini-*" or
"hf:OWNER/NAME@step*". A command that measures one model measures each of several in turn.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from eval.engine.methods import expand, is_model, method_overrides, name_paths, split_words
from eval.engine.rows import RESULTS, Result, document, write_rows
from lab.core import command, errors, launch, schema, yaml
from lab.core.chart import altair, save
from lab.core.command import Syntax, Words, read_options, settings_lines, show
from lab.core.rows import Row
from lab.positions.methods import PositionConfig

MODEL = "{word}: MODEL must be the first argument; give a run folder, a checkpoint in it, or a Hugging Face folder"
MODELS = """
MODEL is a run folder, a checkpoint in it, or any causal model of transformers, a folder or hf:OWNER/NAME@REVISION
(docs/evaluation.md), or a pattern of these. Position methods that are named take the place of its own.
"""
OF_RUNS = ("--distance", "--frequency", "--plot")  # which no command of several runs takes
METHOD = "NAME or NAME:parameter=value,..."
SHARED = {  # option: default and meaning
    "--distance": "=null\n      Distance method in place of the model's own; a name alone takes derived "
    f"parameters. [{METHOD}]",
    "--frequency": f"=null\n      Frequency method in place of the model's own. [{METHOD}]",
    "-o": " FOLDER\n      Where results and pictures are written; left out, eval/ of a run, or results/COMMAND-NAME.",
    "--plot": "\n      Draw the picture beside the results.",
    "--json": "\n      Print one JSON object and nothing else: command, rows, files, pictures.",
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a command takes; without `options` its settings are those of a run, read elsewhere.

    `lacks` are the shared options that make no sense for it. `several` methods may be named in one --distance; a `lone`
    one replaces the model's own. `each` is whether several models are measured one by one, `takes` what of the matches
    of a pattern is a model.
    """

    options: type[Any] | None = None
    lacks: tuple[str, ...] = ()
    several: bool = False
    lone: bool = False
    each: bool = True
    takes: Callable[[Path], object] = is_model
    missing: str = MODEL

    @property
    def syntax(self) -> Syntax:
        return Syntax(None, ("--plot", "--json"), ("-o", "--frequency"), ("--distance",), self.missing)

    def lines(self, settings: Sequence[str] = ()) -> list[str]:
        """Describe the options: the command's own, the shared ones, the parameters of position methods."""
        listed = settings_lines(self.options) if self.options is not None else list(settings)
        listed += [f"  {name}{meaning}" for name, meaning in SHARED.items() if name not in self.lacks]
        if "--distance" not in self.lacks:
            listed += ["", *settings_lines(PositionConfig, prefix="position.", heading="Position methods")]
        return listed


class Request(NamedTuple):
    """What a command line asks for; `overrides` are the model's position methods.

    `options` are the command's own, or where it has none all settings. `folder` is that of -o, `distances` the methods
    of a command that takes several.
    """

    model: Path
    options: Any
    overrides: dict[str, Any]
    plots: bool
    folder: Path | None = None
    distances: tuple[str, ...] = ()
    places: tuple[Path, ...] = ()

    def save(self, name: str, text: str, rows: Sequence[Row], chart: Callable[[], Any] | None = None) -> Result:
        """Return the result. -o writes its rows to FOLDER/NAME.jsonl, --plot plots NAME.png there or in results/.

        Raises: ConfigError if a file cannot be written.
        """
        written = picture = None
        if chart is not None and self.plots:
            picture = (self.folder or RESULTS) / f"{name}.png"
            save(chart(), picture)
        if self.folder is not None:
            written = self.folder / f"{name}.jsonl"
            write_rows(written, rows)
        return Result(text, rows, written, picture)


def run(
    name: str,
    description: str | None,
    form: Form,
    measure: Callable[[Request], Result],
    arguments: Sequence[str],
    *,
    settings: Callable[[], Sequence[str]] = tuple,
    stopped: str = command.CONTINUES,
) -> int:
    """Read the command line, measure, print the results, and return the exit status."""

    def work(words: Words) -> int:
        launch.check_copies(os.environ, f"start one with probe-lab {name}")
        results: list[Result] = []
        with printing_to_stderr() if words.options.json else contextlib.nullcontext():
            for request in read_requests(words, form):
                results.append(measure(request))
                if not words.options.json:
                    show(results[-1].full_text)
        if words.options.json:
            show(document(name, results))
        return command.WRONG if getattr(sys.stdout, "lost", False) else 0

    lines = lambda: form.lines(settings())  # noqa: E731
    text = f"{description}{MODELS if form.missing == MODEL else ''}"
    return command.run(text, arguments, work, syntax=form.syntax, settings=lines, stopped=stopped)


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send the output of this process and its children to stderr, so that stdout contains only results."""
    sys.stdout.flush()  # text that is buffered belongs to the old stdout
    # Descriptor 1 is replaced too, because child processes inherit it and know nothing of sys.stdout.
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def read_requests(words: Words, form: Form) -> Iterator[Request]:
    """Read a command line: a request for each model, or one for all.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    named = words.options
    places = expand(words.places, form.takes)
    settings = dict(words.settings)
    if named.plot:
        altair()  # a missing package is an error before time is spent
    faults = [
        f"{option}: is no option of this command; leave it out"
        for option in form.lacks
        if getattr(named, option.lstrip("-"))
    ]
    # Position methods are the model's; the settings that remain are the command's own.
    moved = () if "--distance" in form.lacks else [key for key in settings if key.partition(".")[0] == "position"]
    overrides = yaml.flatten({key: settings.pop(key) for key in moved})
    distances: list[str] = []
    for text in named.distance or ():
        distances += split_words(text)
    if len(distances) > 1 and not form.several:
        faults.append(f"--distance={errors.brief(','.join(distances))}: give one; probe-lab probe compares several")
    for kind, word in (("distance", distances), ("frequency", named.frequency)):
        beside = [key for key in overrides if word and key.startswith(f"position.{kind}.")]
        faults += [f"--{key}: would be ignored beside --{kind}; leave one of them out" for key in beside]
    if form.options is None and faults:
        raise errors.ConfigError(*faults)
    options = settings if form.options is None else read_options(form.options, settings, faults)
    replaces = len(distances) == 1 and (form.lone or not form.several)
    methods = {"distance": distances[0] if replaces else None, "frequency": named.frequency}
    folder = None if named.o is None else Path(named.o)
    measured = places if form.each else places[:1] or [Path()]
    for place, own_name in zip(measured, name_paths(measured), strict=True):
        position = {**overrides, **method_overrides(place, methods, longest(options))}
        where = folder / own_name if folder is not None and len(measured) > 1 else folder
        yield Request(place, options, position, named.plot, where, tuple(distances), tuple(places))


def file_in(place: Path | None, default: str, home: Path = Path()) -> Path:
    """Name the file of -o, which is a file with an ending, or a folder for one of the default name.

    Example:
        >>> file_in(Path("out"), "report.html").as_posix(), file_in(Path("a.html"), "report.html").as_posix()
        ('out/report.html', 'a.html')
    """
    if place is None:
        return home / default
    return place if place.suffix else place / default


def longest(options: Any) -> int | None:
    names = ("lengths", "length", "max_length", "window", "tokens")
    length = next((value for name in names if (value := getattr(options, name, None))), None)
    return max(length) if isinstance(length, tuple) else length


@dataclass(frozen=True, kw_only=True)
class DrawnOptions(schema.Section):
    """Options of all measurements of a model."""

    seed: schema.Seed = 0
    """Seed of all that is drawn."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class TextOptions(DrawnOptions):
    """Options of measurements on texts."""

    texts: schema.Tests = 10
    """Texts, pieces of the source that do not overlap."""
    text: schema.PathText | None = None
    """Source of the texts: a .txt, .md, .py, .json or .jsonl file, or a folder or a pattern of these; left out, a run's
    corpus: held-out documents, fresh filler."""


@dataclass(frozen=True, kw_only=True)
class CellOptions(DrawnOptions):
    """Options of measurements that are made of cells."""

    batch: schema.Tests | None = None
    """Rows that the model runs side by side; left out, as many as have 16384 tokens together, 64 at most."""

    def rows(self, length: int) -> int:
        """Choose how many rows of a length run side by side.

        Example:
            >>> CellOptions().rows(128), CellOptions().rows(8192), CellOptions(batch=3).rows(128)
            (64, 2, 3)
        """
        return self.batch or max(1, min(64, 16_384 // length))
