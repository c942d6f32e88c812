"""Show the relative positions of a text under a method, and how often training has seen them.

    python -m eval.positions METHOD --length=TOKENS [--parameter=value ...] [--plot] [-o FOLDER]
    python -m eval.positions SKIP --n_tokens=TOKENS --target_len=TOKENS [--option=value ...] [--plot] [-o FOLDER]

Of a distance method it prints the matrix of relative positions, rows queries and columns keys, and what is in it:

    python -m eval.positions string --shift 3 --window 0 --length 9
    python -m eval.positions dca --train_len=10 --chunk=6 --length=12
    python -m eval.positions string --shift=43008 --length=131072

--plot also draws it, beside the same matrix coloured by how often training has trained each cell's position. Training
is documents of a natural, uniform or concatenated length, or what a finished run has counted:

    python -m eval.positions string --shift=683 --length=2048 --plot
    python -m eval.positions string --shift=683 --length=2048 --plot --train=concatenated -o string
    python -m eval.positions rerope --window=512 --length=4096 --plot --train_len=2048
    python -m eval.positions string --shift=64 --window=32 --length=192 --plot --counts=runs/cpu_demo

Of a skip method, which gives a short sample ids inside a long target window, it prints how far apart tokens are, how
long ids go on without a gap, and how often they are a quarter, a half and three quarters of the window apart;
--plot draws that, and the ids of one sample:

    python -m eval.positions pose --n_tokens 2048 --target_len 8192
    python -m eval.positions longrecipe --n_tokens=24000 --target_len=80000 --sentence_tokens=86 --plot

Parameters may follow METHOD after a colon, as in --distance: string:shift=3,window=0. The picture is
positions-METHOD-TOKENS.png in runs/, or in FOLDER of -o beside the figures as .jsonl.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from eval.engine import command
from eval.engine.command import NO_TEXT, Form, run
from eval.engine.rows import Found, save
from eval.positions.matrix import LONGEST, facts, figures, matrix_text
from eval.positions.picture import draw
from eval.positions.skips import (
    SentenceOptions,
    SkipOptions,
    compared,
    heading,
    records,
    remarks,
    samples,
    table,
    window_faults,
)
from eval.positions.skips_picture import draw_skips
from eval.positions.training import Training, run_training, shaped_training
from lab.command import NOTHING_WRITTEN, bare_settings, read_options, settings_lines, start
from lab.data.config import Mode
from lab.errors import ConfigError
from lab.positions import DISTANCE_METHODS
from lab.schema import PathText, Section, look_up
from lab.settings import parse_method
from lab.skip import SKIP_METHODS

PICTURE_ONLY = ("train", "train_len", "counts")

Length = Annotated[int, Ge(1), Le(LONGEST)]


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """Options of the command beside a distance method's own parameters."""

    length: Length
    """Length of the text in tokens."""
    train: Mode | None = None
    """Document lengths of the training: natural (as in SlimPajama), uniform or concatenated; left out, natural."""
    train_len: Length | None = None
    """Training length L in tokens, of the longest segment; left out, that of --counts or else the text's length."""
    counts: PathText | None = None
    """Run folder whose counts.npz holds the counts of the training."""

    def rules(self) -> list[str]:
        """Refuse two descriptions of the training."""
        if self.train is not None and self.counts is not None:
            return [f"train={self.train}: would be ignored, --counts={self.counts} is given; leave one of them out"]
        return []


class Request(NamedTuple):
    """The parsed command line; without a picture nothing is drawn."""

    method: str
    config: Any
    options: Any
    picture: Path | None


class Kind(NamedTuple):
    """A method's class, the command's options for it, and the function that shows a request for it."""

    config: type[Section]
    options: type[Any]
    show: Callable[[Request], Found]


def show_distance(request: Request) -> Found:
    """Print and, if requested, draw the matrix of a distance method.

    Raises: LabError.
    """
    _, distance, options, picture = request
    faults = distance.length_faults(options.length)
    if faults:
        raise ConfigError(*as_options(faults))
    training = None if picture is None else training_of(request)
    text = f"{matrix_text(distance, options.length)}\n\n{facts(distance, options.length)}"
    if picture is not None and training is not None:
        draw(distance, options.length, training, picture)
    return Found(text, [figures(distance, options.length)], picture=picture)


def show_skip(request: Request) -> Found:
    """Print and, if requested, draw the statistics of a skip method's ids.

    Raises: LabError.
    """
    _, config, options, picture = request
    faults = window_faults(config, options)
    if faults:
        raise ConfigError(*as_options(faults))
    measures = compared(config, options)
    text = f"{heading(config, options)}\n\n{table(measures)}\n\n{remarks(config, options)}"
    if picture is not None:
        draw_skips(config, options, measures, next(samples(config, options)), picture)
    return Found(text, records(measures), picture=picture)


METHODS: dict[str, Kind] = {
    **{name: Kind(config, Options, show_distance) for name, config in DISTANCE_METHODS.items()},
    **{
        name: Kind(config, SentenceOptions if config.needs_sentences else SkipOptions, show_skip)
        for name, config in SKIP_METHODS.items()
    },
}


OWN = "the first argument, METHOD, names the method"
FORM = Form(
    refused={"--distance": OWN, "--frequency": OWN, "--text": NO_TEXT},
    missing=f"METHOD: must be the first argument; one of: {', '.join(METHODS)}",
    bare=tuple(name for kind in METHODS.values() for name in bare_settings(kind.config)),
)


def training_of(request: Request) -> Training:
    """Count or read how often training has seen each position.

    Raises: LabError.
    """
    options = request.options
    if options.counts is None:
        return shaped_training(options.train or "natural", options.train_len or options.length)
    training = run_training(Path(options.counts))
    if options.train_len not in (None, training.train_len):
        rule = f"must be {training.train_len}, the window of --counts={options.counts}"
        raise ConfigError(f"--train_len={options.train_len}: {rule}; leave it out or change it")
    return training


def parse(asked: command.Request) -> Request:
    """Check the command line.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    named = parse_method(str(asked.model), "METHOD")
    method, plots = named.pop("method"), asked.plots
    twice = [f"--{name}: is given in METHOD too; keep one" for name in named if name in asked.options]
    given = {**named, **asked.options}
    config_class = look_up({name: kind.config for name, kind in METHODS.items()}, method, "METHOD")
    options_class = METHODS[method].options
    faults = [*twice, *unknown_options(method, given)]
    config, wrong = checked(config_class, given)
    options, other = checked(options_class, given)
    answered = {fault.partition("=")[0] for fault in wrong}  # train_len may be the method's as well
    faults += [*wrong, *(fault for fault in other if fault.partition("=")[0] not in answered)]
    if options is not None and not plots:
        faults += ignored_options(given, set(own_names(options_class)) - set(own_names(config_class)))
    if faults:
        raise ConfigError(*faults)
    picture = (asked.folder or Path("runs")) / f"positions-{method}-{options.length}.png" if plots else None
    return Request(method, config, options, picture)


def own_names(config_class: type[Any]) -> list[str]:
    """List a config class's fields but for the tag, which is METHOD, and settings of training alone."""
    others = ("method", *getattr(config_class, "of_training", ()))
    return [field.name for field in fields(config_class) if field.name not in others]


def checked(config_class: type[Any], given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Build a config class from those options that are its own; nothing, and the fault lines, where they are wrong."""
    own = {name: value for name, value in given.items() if name in own_names(config_class)}
    try:
        return read_options(config_class, own), []
    except ConfigError as error:
        return None, list(error.faults)


def as_options(faults: Iterable[str]) -> list[str]:
    """Name the field that begins a fault line as it is written on the command line."""
    return [f"--{fault}" for fault in faults]


def unknown_options(method: str, given: Mapping[str, Any]) -> list[str]:
    """List the options that neither the method nor the command has."""
    own, common = own_names(METHODS[method].config), own_names(METHODS[method].options)
    faults = []
    for name in given:
        if name not in (*own, *common):
            near = difflib.get_close_matches(name, [*own, *common, "plot"], n=1)
            everything = ", ".join(f"--{word}" for word in dict.fromkeys([*own, *common, "plot"]))
            hint = f"did you mean --{near[0]}?" if near else f"{method} takes {everything}"
            faults.append(f"--{name}: unknown option; {hint}")
    return faults


def ignored_options(given: Mapping[str, Any], names: Container[str]) -> list[str]:
    """List the options among `names` that matter to a picture only, where none is drawn."""
    of_training = [name for name in PICTURE_ONLY if name in given and name in names]
    return [f"--{name}={given[name]}: would be ignored, nothing is drawn; add --plot" for name in of_training]


def settings() -> list[str]:
    """Describe the options, and every method's parameters."""
    lines = []
    for options in dict.fromkeys(kind.options for kind in METHODS.values()):
        methods = ", ".join(method for method, kind in METHODS.items() if kind.options is options)
        lines += [f"Options of {methods} (default; meaning):", "", *settings_lines(options, own_names(options))]
        lines.append("")
    for method, kind in METHODS.items():
        lines += ["", f"{method} (default; meaning):", "", *settings_lines(kind.config, own_names(kind.config))]
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def show(asked: command.Request) -> Found:
        request = parse(asked)
        found = METHODS[request.method].show(request)
        return save(found, asked.folder, f"positions-{request.method}-{request.options.length}")

    return run("eval.positions", __doc__, FORM, show, arguments, settings=settings, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
