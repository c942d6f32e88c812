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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from eval.engine.command import Form, Request, run
from eval.engine.matrix import (
    LONGEST,
    Training,
    cells,
    evenly,
    facts,
    figures,
    matrix_text,
    number,
    resolved,
    run_training,
    shaped_training,
    values,
)
from eval.engine.rows import Found, percent, save
from eval.engine.skip_ids import (
    SentenceOptions,
    SkipOptions,
    compared,
    heading,
    records,
    remarks,
    skip_chart,
    table,
    window_faults,
)
from lab.command import NOTHING_WRITTEN, parse_method, read_options, settings_lines, start
from lab.data.config import Mode
from lab.draw import Rule, beside, draw
from lab.draw import save as save_chart
from lab.errors import ConfigError, look_up
from lab.positions import DISTANCE_METHODS, Distance
from lab.schema import PathText, Section
from lab.skip import SKIP_METHODS

PICTURE_ONLY = ("train", "train_len", "counts")
CELLS = 72  # queries, and keys, of a text that are drawn at most
NUMBERED = 16  # tokens of the longest text whose cells carry their numbers
POINTS = 512  # of a curve at most
REACH = 1.25  # end of the curve's axis at most, in lengths that training and the method cover

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


METHODS: dict[str, type[Section]] = {**DISTANCE_METHODS, **SKIP_METHODS}
FORM = Form(
    lacks=("--distance", "--frequency"),
    missing=f"METHOD: must be the first argument; one of: {', '.join(METHODS)}",
)


def options_of(config_class: type[Any]) -> type[Any]:
    """Return the class of the command's options for a method."""
    if not hasattr(config_class, "needs_sentences"):
        return Options
    return SentenceOptions if config_class.needs_sentences else SkipOptions


def show(request: Request) -> Found:
    """Show a method's matrix, or statistics of a skip method's ids.

    Raises: LabError.
    """
    config, options = parse(request)
    faults = config.length_faults(options.length) if isinstance(options, Options) else window_faults(config, options)
    if faults:
        raise ConfigError(*(f"--{fault}" for fault in faults))
    if isinstance(options, Options):
        text = f"{matrix_text(config, options.length)}\n\n{facts(config, options.length)}"
        rows = [figures(config, options.length)]
        chart = distance_chart(config, options.length, training_of(options)) if request.plots else None
    else:
        measures = compared(config, options)
        text = f"{heading(config, options)}\n\n{table(measures)}\n\n{remarks(config, options)}"
        rows = records(measures)
        chart = skip_chart(config, options, measures) if request.plots else None
    name = f"positions-{config.method}-{options.length}"
    picture = None if chart is None else (request.folder or Path("runs")) / f"{name}.png"
    if picture is not None:
        save_chart(chart, picture)
    return save(Found(text, rows, picture=picture), request.folder, name)


def parse(request: Request) -> tuple[Any, Any]:
    """Build the method and the command's options for it.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    named = parse_method(str(request.model), "METHOD")
    method = named.pop("method")
    config_class = look_up(METHODS, method, "METHOD")
    options_class = options_of(config_class)
    given, own, common = {**named, **request.options}, own_names(config_class), own_names(options_class)
    faults = [f"--{name}: is given in METHOD too; keep one" for name in named if name in request.options]
    for name in set(given) - {*own, *common}:
        near = difflib.get_close_matches(name, [*own, *common, "plot"], n=1)
        everything = ", ".join(f"--{word}" for word in dict.fromkeys([*own, *common, "plot"]))
        faults.append(
            f"--{name}: unknown option; " + (f"did you mean --{near[0]}?" if near else f"{method} takes {everything}")
        )
    config, wrong = checked(config_class, given)
    options, other = checked(options_class, given)
    answered = {fault.partition("=")[0] for fault in wrong}  # train_len may be the method's as well
    faults += [*wrong, *(fault for fault in other if fault.partition("=")[0] not in answered)]
    if options is not None and not request.plots:
        ignored = [name for name in PICTURE_ONLY if name in given and name in common and name not in own]
        faults += [f"--{name}={given[name]}: would be ignored, nothing is drawn; add --plot" for name in ignored]
    if faults:
        raise ConfigError(*faults)
    return config, options


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


def training_of(options: Options) -> Training:
    """Count or read how often training has seen each position.

    Raises: LabError.
    """
    if options.counts is None:
        return shaped_training(options.train or "natural", options.train_len or options.length)
    training = run_training(Path(options.counts))
    if options.train_len not in (None, training.train_len):
        rule = f"must be {training.train_len}, the window of --counts={options.counts}"
        raise ConfigError(f"--train_len={options.train_len}: {rule}; leave it out or change it")
    return training


def distance_chart(distance: Distance, length: int, training: Training) -> Any:
    """Draw the matrix (arXiv:2410.18745, Figures 5 and 8), the same cells by f, and f(i) (Figure 1)."""
    at = evenly(length, CELLS)
    rel_pos = cells(distance, at, at)
    share = training.share_of(training.frequency_at(rel_pos))
    rows = [
        {
            "key": int(key),
            "query": int(query),
            "position": rel_pos[i, j],
            "share": share[i, j],
            "text": number(rel_pos[i, j]) if key <= query else "",
        }
        for i, query in enumerate(at)
        for j, key in enumerate(at)
    ]
    heat = partial(draw, rows, "key", "query", kind="heat", x_title="key position", y_title="query position")
    never = percent(float((share == 0).sum() / np.isfinite(share).sum()))
    method = f"{distance.method}: " + ", ".join(
        f"{name} {value}" for name, value in resolved(distance).items() if value
    )
    return beside(
        heat("position", text="text" if length <= NUMBERED else None, title="relative position, tokens"),
        heat("share", percent=True, title=f"f of it, share of the largest; never trained: {never} of the cells"),
        frequency_chart(distance, length, training),
        title=f"{distance.method}: {method}; a text of {length:,} tokens; training: {training.name}",
    )


def frequency_chart(distance: Distance, length: int, training: Training) -> Any:
    """Draw f(i), and mark where the method and plain distance end."""
    largest, plain, known = float(values(distance, length)[-1]), float(length - 1), training.train_len
    end = min(max(plain + 1, known), REACH * max(largest + 1, known))
    at = np.linspace(0, end, POINTS)
    rules = [Rule("x", largest, f"{distance.method} ends at {largest:,.0f}")]
    if largest < plain <= end:
        rules.append(Rule("x", plain, f"plain at {plain:,.0f}"))
    return draw(
        [{"i": i, "f": f} for i, f in zip(at, training.share_of(training.frequency_at(at)), strict=True)],
        "i",
        "f",
        percent=True,
        marks=False,
        rules=rules,
        title="position frequency of the training, f(i) / largest f",
        x_title="relative position i (tokens)",
        y_title="",
    )


def settings() -> list[str]:
    """Describe the options, and every method's parameters."""
    lines = []
    for options in (Options, SkipOptions, SentenceOptions):
        methods = ", ".join(method for method, config in METHODS.items() if options_of(config) is options)
        lines += [f"Options of {methods} (default; meaning):", "", *settings_lines(options, own_names(options))]
        lines.append("")
    for method, config in METHODS.items():
        lines += ["", f"{method} (default; meaning):", "", *settings_lines(config, own_names(config))]
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.positions", __doc__, FORM, show, arguments, settings=settings, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
