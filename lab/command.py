"""Parts that all commands share: parsing the command line, help, printing, one line per fault, exit status.

argparse reads a command's options, such as -o and --plot. Every other --name=value is a setting, which lab.settings
reads, checks and documents. --help is short; --help=all lists every setting, --help=SECTION those of a section.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice, takewhile
from typing import Any, NamedTuple, NoReturn

from lab.errors import ConfigError, LabError, brief, nearest
from lab.files import on_disk
from lab.schema import TAGS, Section, is_short, validated_values
from lab.settings import all_settings, parse_overrides, parse_yaml

FAILED, WRONG, STOPPED = 1, 2, 75  # exit statuses
MOST_LINES, LONGEST_LINE = 3, 500  # of faults that are printed
CONTINUES = "stopped; the same command continues"
NOTHING_WRITTEN = "stopped; nothing was written"
HELP = ("-h", "--help", "--help=all")
ABOUT = "--help="  # all, or a section


class Words(NamedTuple):
    """The words before the first option, the options, and the settings by name."""

    places: list[str]
    options: argparse.Namespace
    settings: dict[str, Any]


class Syntax(NamedTuple):
    """The grammar of a command line apart from its settings.

    `places` is the most words before the options, `flags` are options without a value, `values` those with one, and
    `lists` those with several, which may be repeated. Settings in `bare` may be written without a value, which means
    true. `missing` is the fault where no word comes before the options, {word} being the first of these.
    """

    places: int | None = 1
    flags: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    missing: str = ""

    def read(self, words: Sequence[str]) -> Words:
        """Read a command line.

        Raises: ConfigError.
        Example:
            >>> Syntax(values=("-o",), bare=("fast",)).read(["run", "--n=3", "-o", "out", "--fast"])
            Words(places=['run'], options=Namespace(o='out'), settings={'n': 3, 'fast': True})
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        for name in self.flags:
            parser.add_argument(name, action="store_true")
        for name in self.values:
            parser.add_argument(name)
        for name in self.lists:
            parser.add_argument(name, nargs="+", action="extend")
        try:
            options, rest = parser.parse_known_args(list(words))
        except argparse.ArgumentError as error:
            name = str(error.argument_name)
            fault = "takes no value; leave it out" if name in self.flags else "has no value; write it after a space"
            raise ConfigError(f"{name}: {fault}") from error
        places = list(islice(takewhile(lambda word: not word.startswith("-"), rest), self.places))
        given = [("", place) for place in places]
        given += [(f"{name}=", getattr(options, name.lstrip("-")) or "") for name in self.values]
        for name, path in given:
            if not is_short(path):
                raise ConfigError(f"{name}{brief(path)}: too long for a path, or not in one line; give a shorter one")
        if not places and self.missing:
            raise ConfigError(self.missing.format(word=words[0]))
        return Words(places, options, parse_overrides(rest[len(places) :], self.bare))


def show(text: object, *, error: bool = False, end: str = "\n") -> None:
    """Print to stdout, or to stderr for an error; all of the lab's output goes through here."""
    stream = sys.stderr if error else sys.stdout
    try:
        stream.write(f"{text}{end}")
        stream.flush()
    except BrokenPipeError:  # `| head` has exited; stdout must not be flushed again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def help_status(description: str | None, arguments: Sequence[str], settings: Callable[[], Iterable[str]]) -> int | None:
    """Print help if it is requested or there are no arguments, and return the exit status; otherwise return None."""
    asked = [word for word in arguments if word in HELP or word.startswith(ABOUT)]
    if arguments and not asked:
        return None
    lines = list(settings())
    about = next((word.removeprefix(ABOUT) for word in asked if word.startswith(ABOUT)), None)
    sections = dict.fromkeys(re.findall(r"^ +--([a-z_]+)\.", "\n".join(lines), re.M))
    if about == "all":
        show("\n".join([str(description), *lines]))
    elif about in sections:
        show("\n".join(line for line in lines if line.lstrip(" -\n").startswith(f"{about}.")))
    elif about is not None:
        show(f"{ABOUT}{brief(about)}: no such section; {nearest(about, ['all', *sections])}", error=True)
        return WRONG
    else:
        more = ["--help=all lists every setting, its default and meaning."] if lines else []
        more += [f"--help=SECTION lists those of a section: {', '.join(sections)}."] if sections else []
        show("\n".join([str(description), *more]))
    return 0 if asked else WRONG


def failed(
    error: LabError | KeyboardInterrupt, stopped: str = NOTHING_WRITTEN, *, silent: bool = False, whole: bool = False
) -> int:
    """Print why a command ended early, in short unless the `whole` is asked for, and return its exit status."""
    is_signal = isinstance(error, KeyboardInterrupt)
    if not silent:
        faults = str(error) if whole else in_short(str(error))
        show((str(error) or stopped) if is_signal else faults, error=True)
    return STOPPED if is_signal else WRONG


def in_short(faults: str) -> str:
    r"""Cut faults down to three lines, the third of which names the fields of the others, and lines in the middle.

    Example:
        >>> print(in_short("a.b=1: no; x\nc: no; x\nd=2: no; x\ne: no; x"))
        a.b=1: no; x
        c: no; x
        2 more: d=2, e
    """
    lines = faults.splitlines()
    if len(lines) > MOST_LINES:
        fields = [brief(line.partition(": ")[0]) for line in lines[MOST_LINES - 1 :]]
        lines = [*lines[: MOST_LINES - 1], f"{len(fields)} more: {', '.join(fields)}"]
    half = LONGEST_LINE // 2
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:half]} ... {line[-half:]}" for line in lines)


def run(
    description: str | None,
    arguments: Sequence[str],
    work: Callable[[Words], str | int],
    *,
    syntax: Syntax = Syntax(),
    settings: Callable[[], Iterable[str]] = tuple,
    stopped: str = NOTHING_WRITTEN,
    whole: bool = False,
    silent: bool = False,
) -> int:
    """Run a command and return the exit status.

    Text that `work` returns is printed; an exit status that it returns is returned. --help prints the description,
    --help=all also the lines of `settings`, --help=SECTION those of one section. A LabError
    is printed in short, or `whole`; a KeyboardInterrupt may hold its own line.
    """
    status = help_status(description, arguments, settings)
    if status is not None:
        return status
    try:
        with on_disk():
            done = work(syntax.read(arguments))
    except (LabError, KeyboardInterrupt) as error:
        return failed(error, stopped, silent=silent, whole=whole)
    if isinstance(done, int):
        return done
    show(done)
    return 0


def start(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command in this process; SIGTERM stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main(sys.argv[1:]))


def read_options(options_class: type[Any], given: Mapping[str, Any], faults: Sequence[str] = ()) -> Any:
    """Build a command's options from the settings given; `faults` were found elsewhere on the command line.

    `64,128`, `64` and `vt,cwe` are lists where an option is a list.

    Raises: ConfigError with all faults, fields named as they are written on the command line.
    """
    lists = [field.name for field in fields(options_class) if "tuple" in str(field.type)]
    values = {name: as_list(value, name) if name in lists else value for name, value in given.items()}
    faults = [
        *faults,
        *(f"--{name}=[]: must hold one or more; leave it out" for name in lists if given.get(name) == []),
    ]
    try:
        options = validated_values(options_class, values)
    except ConfigError as error:
        raise ConfigError(*faults, *(f"--{fault}" for fault in error.faults)) from error
    if faults:
        raise ConfigError(*faults)
    return options


def as_list(value: Any, name: str) -> Any:
    """Read one word or number, or several between commas, as a list.

    Example:
        >>> as_list("64,128", "n"), as_list(64, "n"), as_list("vt, cwe", "tasks")
        ([64, 128], [64], ['vt', 'cwe'])
    """
    if value is None or isinstance(value, list | dict):
        return value
    return parse_yaml(f"[{value}]", f"--{name}") if isinstance(value, str) else [value]


def settings_lines(options_class: type[Section], names: Iterable[str] | None = None, prefix: str = "") -> list[str]:
    """Describe settings, all or those named: default, meaning and values, a method as the heading of its own."""
    listed = [one for one in all_settings(options_class, prefix) if names is None or one.name in names]
    times = Counter(one.name for one in listed)
    lines, inside = [], "."
    for one in listed:
        heads = times[one.name] > 1 and one.name.rpartition(".")[2] in TAGS
        inside = one.name.rpartition(".")[0] + "." if heads else inside
        start = "\n  " if heads else "    " if one.name.startswith(inside) else "  "
        shown = one.default.strip('"') if heads else one.default
        lines.append(f"{start}--{one.name}={shown}\n      {one.meaning} [{one.values}]")
    return lines


def bare_settings(options_class: type[Any]) -> tuple[str, ...]:
    """List the settings that are true or false, which need no value on a command line."""
    return tuple(field.name for field in fields(options_class) if str(field.type) == "bool")
