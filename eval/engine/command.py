"""The command line of every evaluation: the options that all share, those of a command, and how results are shown.

Shared are -o FOLDER, --plot, --json, --distance, --frequency and --text. A command refuses those that make no sense for
it, each with a reason. MODEL and RUN may be patterns, as "runs/mini-*" or "hf:OWNER/NAME@{main,step1000}"; a command
that measures one model measures each of several in turn, and may show them together at the end.

Options that several evaluations have.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from eval.engine.methods import expand, method_overrides, names_of, split_words
from eval.engine.rows import Found, document
from lab import command
from lab.command import Syntax, Words, read_options, settings_lines, show
from lab.errors import ConfigError, brief
from lab.launch import read_launch
from lab.positions.methods import PositionConfig
from lab.schema import PathText, Section, Seed, Tests
from lab.source import find_place, is_hub_id

MODEL = "{word}: MODEL must be the first argument; give a run folder, a checkpoint in it, or a Hugging Face folder"
OWN_TEXT = "this command writes its own text"
NO_METHOD = "this command runs no model under another method"
NO_TEXT = "this command reads no text"
NO_PICTURE = "this command draws no picture"
NO_MODEL = {"--distance": NO_METHOD, "--frequency": NO_METHOD, "--text": NO_TEXT}
ENDINGS = (".png", ".jpg", ".svg", ".pdf", ".jsonl", ".csv", ".md")  # of files, which -o FOLDER does not name
METHOD = "NAME or NAME:parameter=value,..."
SHARED = {  # option: default and meaning
    "--distance": "=null\n      Distance method in place of the model's own; a name alone takes derived "
    f"parameters. [{METHOD}]",
    "--frequency": f"=null\n      Frequency method in place of the model's own. [{METHOD}]",
    "--text": "=null\n      The same as --{text}. [text]",
    "-o": " FOLDER\n      Where results and pictures are written.",
    "--plot": "\n      Draw the picture beside the results.",
    "--json": "\n      Print one JSON object and nothing else: command, rows, files, pictures.",
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a command takes; without `options` its settings are those of a run, read elsewhere.

    `refused` are the shared options that make no sense for it, with the reason. `text` is the option that --text sets.
    `several` methods may be named in one --distance; a `lone` one replaces the model's own. -o may name a `file`.
    `each` is whether several models are measured one by one; `shared`, whether the processes of a torchrun measure
    together.
    """

    options: type[Any] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    text: str = "text"
    several: bool = False
    lone: bool = False
    each: bool = True
    file: bool = False
    shared: bool = False
    missing: str = MODEL
    values: tuple[str, ...] = ()

    @property
    def syntax(self) -> Syntax:
        """The grammar of the command line."""
        values = ("-o", "--frequency", "--text", *self.values)
        return Syntax(None, ("--plot", "--json"), values, ("--distance",), self.missing)

    def lines(self, settings: Sequence[str] = ()) -> list[str]:
        """Describe the options: the command's own, the shared ones, the parameters of position methods."""
        own = settings_lines(self.options) if self.options is not None else list(settings)
        known = {item.name for item in fields(self.options)} if self.options is not None else set()
        hidden = {*self.refused, *(f"--{name}" for name in known)}
        shared = [f"  {name}{SHARED[name].format(text=self.text)}" for name in SHARED if name not in hidden]
        listed = ["Options (default; meaning):", "", *own, *shared]
        if "--distance" not in self.refused:
            listed += ["", "Position methods:", *settings_lines(PositionConfig, prefix="position.")]
        return listed


class Request(NamedTuple):
    """What a command line asks for; `overrides` are the model's position methods.

    `options` are the command's own, or where it has none all settings. `folder` is that of -o, `distances` the methods
    of a command that takes several, `named` all options that argparse read.
    """

    model: Path
    options: Any
    overrides: dict[str, Any]
    plots: bool
    folder: Path | None = None
    distances: tuple[str, ...] = ()
    places: tuple[Path, ...] = ()
    named: Any = None


def run(
    name: str,
    description: str | None,
    form: Form,
    measure: Callable[[Request], Found | None],
    arguments: Sequence[str],
    *,
    settings: Callable[[], Sequence[str]] = tuple,
    stopped: str = command.CONTINUES,
    together: Callable[[Request, Sequence[Found]], Found] | None = None,
) -> int:
    """Read the command line, measure, show what was found, and return the exit status.

    `measure` returns None in all processes but the first. `together` is given what was found of several models, and the
    last request.
    """

    def work(words: Words) -> int:
        refuse_copies(name, form)
        found = []
        with printing_to_stderr() if words.options.json else contextlib.nullcontext():
            for request in requests_of(words, form):
                one = measure(request)
                if one is not None and not words.options.json:
                    show(one.whole)
                found += [] if one is None else [one]
            if together is not None and len(found) > 1:
                found.append(together(request, found))
                if not words.options.json:
                    show(found[-1].whole)
        if words.options.json and found:
            show(document(name, found))
        return 0

    lines = lambda: form.lines(settings())  # noqa: E731
    return command.run(description, arguments, work, syntax=form.syntax, settings=lines, stopped=stopped)


def refuse_copies(name: str, form: Form) -> None:
    """Refuse several processes where each would measure the same and write over the others' results.

    Raises: ConfigError.
    """
    launch = read_launch(os.environ)
    if launch.world_size > 1 and not form.shared:
        raise ConfigError(
            f"torchrun: {launch.world_size} processes of {name} would measure the same; start one with python -m "
            f"{name} (those of eval.perplexity share every window)"
        )


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send what this process and those that it starts print to stderr, where stdout is to hold results alone."""
    sys.stdout.flush()
    own = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def requests_of(words: Words, form: Form) -> Iterator[Request]:
    """Read a command line: a request for each model, or one for all.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    named, places = words.options, expand(words.places)
    faults = [
        f"{option}{'' if given is True else f'={brief(shown(given))}'}: {reason}; leave it out"
        for option, reason in form.refused.items()
        if (given := getattr(named, option.lstrip("-")))
    ]
    if named.o is not None and Path(named.o).suffix in ENDINGS and not form.file:
        faults.append(f"-o {named.o}: must be a folder, results and pictures are written into it; leave the ending out")
    own = dict(words.settings)
    overrides = {} if form.options is None else {key: own.pop(key) for key in words.settings if is_method(key)}
    if "--distance" in form.refused:
        faults += [f"--{key}: {form.refused['--distance']}; leave it out" for key in overrides]
    if named.text is not None and "--text" not in form.refused:
        faults += [f"--{form.text}: is given twice, as --text too; keep one"] if form.text in own else []
        own[form.text] = named.text
    distances = [word for given in named.distance or () for word in split_words(given)]
    if len(distances) > 1 and not form.several:
        faults.append(f"--distance={brief(','.join(distances))}: this command takes one; eval.probe compares several")
    replaces = len(distances) == 1 and (form.lone or not form.several)
    given = {"distance": distances[0] if replaces else None, "frequency": named.frequency}
    faults += [
        f"--{key}: would be ignored beside --{kind}; leave one of them out"
        for kind, word in (("distance", distances), ("frequency", named.frequency))
        for key in words.settings
        if word and key.startswith(f"position.{kind}.")
    ]
    if form.options is None and faults:
        raise ConfigError(*faults)
    options = own if form.options is None else read_options(form.options, own, faults)
    folder, several = None if named.o is None else Path(named.o), len(places) > 1 and form.each
    for place in places if several and form.missing == MODEL else ():
        if not is_hub_id(place):  # which would download all of them
            find_place(place)  # before time is spent on the first
    measured = places if form.each else places[:1] or [Path()]
    for place, own_name in zip(measured, names_of(measured), strict=True):
        methods = {**overrides, **method_overrides(place, given, longest(options))}
        whole = {**options, **methods} if form.options is None else options
        where = folder / own_name if folder is not None and several else folder
        yield Request(place, whole, methods, named.plot, where, tuple(distances), tuple(places), named)


def is_method(key: str) -> bool:
    """Return whether a setting belongs to a position method."""
    return key.startswith("position.")


def shown(given: Any) -> str:
    """Write the value of an option as it was given."""
    return ",".join(given) if isinstance(given, list) else str(given)


def longest(options: Any) -> int | None:
    """Find the longest length that options name, in tokens."""
    names = ("lengths", "length", "max_length", "window", "tokens")
    known = options if isinstance(options, dict) else {name: getattr(options, name, None) for name in names}
    found = next((known[name] for name in names if known.get(name)), None)
    longest = max(found) if isinstance(found, tuple) and found else found
    return longest if isinstance(longest, int) else None


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """Options of measurements on texts."""

    texts: Tests = 10
    """Texts, pieces of the source that do not overlap."""
    text: PathText | None = None
    """Source of the texts, a .txt, .json or .jsonl file; left out, a run's corpus: held-out documents, fresh filler."""
    text_field: str = "text"
    """Field of the rows of a .json or .jsonl file that holds the text."""
    seed: Seed = 0
    """Seed of the choice of texts, and of what else is drawn."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class CellOptions(Section):
    """Options of measurements that are made of cells."""

    seed: Seed = 0
    """Seed of all that is drawn."""
    batch: Tests | None = None
    """Rows that the model runs side by side; left out, as many as have 16384 tokens together, 64 at most."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rows(self, length: int) -> int:
        """Choose how many rows of a length run side by side.

        Example:
            >>> CellOptions().rows(128), CellOptions().rows(8192), CellOptions(batch=3).rows(128)
            (64, 2, 3)
        """
        return self.batch or max(1, min(64, 16_384 // length))
