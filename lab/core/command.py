"""Parts that all commands share: the command line, help, printing, progress bars, one line per error, exit status.

argparse reads a command's options, such as -o and --plot. Every other --name=value is a setting, which lab.core.schema
checks. --help lists the options, --help=all also every setting of a section.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from textwrap import wrap
from typing import Any, NamedTuple, NoReturn, TextIO

from tqdm import tqdm

from lab.core.arguments import parse_overrides, settings_lines
from lab.core.errors import ConfigError, LabError, abbreviate, is_short
from lab.core.files import on_disk
from lab.core.plugins import TRUSTED
from lab.core.startup import SIGNALS
from lab.core.yaml import Settings

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # by a signal, after saving
CONTINUES = "stopped; the same command continues"
NOTHING_WRITTEN = "stopped; nothing was written"
ENDING = """
Exit status: 0 done; 2 invalid input, one line per error on stderr; 75 stopped by a signal. --help=all adds the
settings of all sections. --trust runs the code that a config, run or export names (docs/plugins.md).

Options (default; meaning):
"""
HELP = ("-h", "--help", "--help=all")


class Arguments(NamedTuple):
    """The arguments before the options, the options, and the settings by name."""

    positional: list[str]
    options: argparse.Namespace
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """What a command takes, and what its help says."""

    description: str | None = ""
    """Text of --help."""
    positional: int | None = 1
    """Largest number of arguments before the options, the first a path; None for any number of paths."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Options without a value, and their meanings."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Options with one value."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """Options with several values, which may be repeated."""
    excluded: tuple[str, ...] = ()
    """Options that other commands of the same class have, and this one rejects."""
    missing: str = ""
    """Error if no argument comes before the options; {word} is the first one."""
    needs_arguments: bool = True
    """Whether the command prints its help if it is called without arguments."""
    options: type[Any] | None = None
    """Class of the command's own options and settings."""
    settings: Callable[[bool], Sequence[str]] = lambda everything: ()
    """Function that lists further settings, all of them or those without a section."""
    stopped: str = NOTHING_WRITTEN
    """Message after Ctrl-C."""

    def list_settings(self, everything: bool) -> list[str]:
        """List the options and settings, a line each, all of them or those without a section."""
        lines = list(self.settings(everything))
        if self.options is not None:
            lines = [*settings_lines(self.options, everything), *lines]
        return lines

    def format_help(self, everything: bool) -> str:
        """Write what --help prints, or with `everything` what --help=all prints, as wide as the terminal."""
        lines = [f"{self.description}{ENDING}"]
        for name, meaning in {**self.flags, **self.values, **self.lists}.items():
            if name not in self.excluded:
                lines.append(f"  {name:<20}  {meaning}")
        return wrap_help("\n".join([*lines, *self.list_settings(everything)]))

    def read(self, arguments: Sequence[str]) -> Arguments:
        """Read a command line.

        Raises: ConfigError.
        Example:
            >>> CommandSpec(values={"-o": "Folder."}).read(["run", "--n=3", "-o", "out", "--fast"])
            Arguments(positional=['run'], options=Namespace(o='out'), settings={'n': 3, 'fast': True})
        """
        # Without abbreviations, or --plo=1, which is a setting of some command, would be read as --plot.
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        for name in self.flags:
            parser.add_argument(name, action="store_true")
        for name in self.values:
            parser.add_argument(name)
        for name in self.lists:
            parser.add_argument(name, nargs="+", action="extend")
        try:
            options, rest = parser.parse_known_args(list(arguments))
        except argparse.ArgumentError as error:
            raise ConfigError(f"{error.argument_name}: {error.message}; see --help") from error
        positional = list(islice(takewhile(lambda word: not word.startswith("-"), rest), self.positional))
        for word in [
            *positional[: self.positional and 1],
            *(getattr(options, name.lstrip("-")) or "" for name in self.values),
        ]:
            if not is_short(word):
                raise ConfigError(f"{abbreviate(word)}: too long for a path, or not in one line; give a shorter one")
        if not positional and self.missing:
            raise ConfigError(self.missing.format(word=arguments[0]))
        return Arguments(positional, options, parse_overrides(rest[len(positional) :]))


def wrap_help(text: str) -> str:
    """Wrap text to the terminal: paragraphs, commands (indented by 4), and options, whose meanings are a column."""
    width = shutil.get_terminal_size().columns - 2
    lines = []
    for line in re.sub(r"(?<=\S)\n(?=\S)", " ", text).split("\n"):
        column = len(re.findall(r"^ *(?:\S.*?  +)?", line)[0])
        indent = " " * min(2 * column, 24)  # 0 of a paragraph, 8 of a command
        fitted = wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        # The copy of a command in several lines runs.
        lines.append((" \\\n" if column == 4 else "\n").join(fitted))
    return "\n".join(lines)


def show(text: object, *, error: bool = False, end: str = "\n") -> None:
    """Print to stdout, or to stderr for an error; all of the lab's output goes through here."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{text}{end}")
    stream.flush()


class Lines:
    """A stream for a bar that writes each of its states as a line, for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.flush = stream.flush

    def write(self, text: str) -> None:
        if text.strip():
            self.stream.write(f"{text.strip()}\n")


class Bar(tqdm):  # type: ignore[misc]
    """Counts what is done on stderr: a bar on a terminal, in a file or pipe a plain line every few seconds.

    What remains follows from the mean rate since the start, which includes probes and saves.
    """

    def __init__(self, iterable: Iterable[object] | None = None, *, desc: str, **settings: Any) -> None:
        self.on_terminal = sys.stderr.isatty()
        progress = "{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"
        style: dict[str, object] = {"smoothing": 0, "mininterval": 0.2, "bar_format": progress}
        if not self.on_terminal:
            plain = progress.replace("|{bar:20}|", "")
            style |= {"mininterval": 10.0, "bar_format": plain, "file": Lines(sys.stderr)}
            if not settings.get("leave", True):
                style["delay"] = 10.0  # a step of a few seconds writes no line
        super().__init__(iterable, desc=desc, **{**style, **settings})

    def count_finished(self, n: int) -> None:
        """Count what an earlier call has finished, which tells nothing about the rate."""
        self.initial += n
        self.update(n)

    def name(self, text: str) -> None:
        self.set_postfix_str(text, refresh=self.on_terminal)


# tqdm's default lock is shared between processes: a forked child that is killed with it stops its parent.
Bar.set_lock(threading.RLock())


class Output:
    """A text stream that outlives what it is written to, so that its loss costs lines and never the work.

    A reader such as `head` may exit, a terminal close, a disk fill up. From then on a stream's lines go nowhere. The
    other stream says so once, unless a reader had enough.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name = stream, name
        self.lost = False  # what a reader had not had enough of

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text, or lose it."""
        with self.losing():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self.losing():
            self.stream.flush()

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Write to nowhere once the body fails to write; what is still buffered goes there too."""
        try:
            yield
        except OSError as error:
            open_nowhere(self.stream.fileno())
            # A reader that closes a pipe, such as head, has read enough: its command has not failed.
            if not isinstance(error, BrokenPipeError):
                self.lost = True
                reason = f"cannot be written ({error.strerror}); its lines are lost, all else goes on"
                show(f"{self.name}: {reason}", error=self.name == "stdout")


def open_nowhere(number: int) -> None:
    """Open the null device as a descriptor of this number, which may be open or closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def guard() -> None:
    """Guard both streams of this process, and open those that it was started without.

    A closed descriptor is opened on the null device first, or the next file would take its number. Characters that a
    stream's encoding lacks are written as escapes.
    """
    for number, name in enumerate(("stdout", "stderr"), start=1):
        try:
            os.fstat(number)
        except OSError:
            open_nowhere(number)
        stream = getattr(sys, name) or os.fdopen(number, "w", encoding="utf-8", closefd=False)
        if not isinstance(stream, Output):
            with suppress(AttributeError):  # of a stream that a test has put there
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, Output(stream, name))


def run(
    spec: CommandSpec,
    work: Callable[[Arguments], str | int],
    arguments: Sequence[str],
    *,
    report: Callable[[str], object] = partial(show, error=True),
) -> int:
    """Run a command and return the exit status.

    Text that `work` returns is printed, an exit status returned. --help prints the description and the options,
    --help=all also the settings; --trust executes code that files name. `report` prints a LabError, and the message
    after a Ctrl-C.
    """
    guard()
    TRUSTED.set("--trust" in arguments)
    arguments = [word for word in arguments if word != "--trust"]
    if (not arguments and spec.needs_arguments) or {*HELP} & {*arguments}:
        show(spec.format_help("--help=all" in arguments))
        return 0 if arguments else EXIT_BAD_INPUT
    # A full disk is reported here for all commands, in one line.
    try:
        with on_disk():
            done = work(spec.read(arguments))
    except LabError as error:
        report(str(error))
        return EXIT_BAD_INPUT
    except KeyboardInterrupt as error:
        report(str(error) or spec.stopped)
        return EXIT_STOPPED
    if isinstance(done, int):
        return done
    show(done)
    return 0


def start(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command in this process; other signals stop it as Ctrl-C does, unless they are ignored, as under nohup."""
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    status = main(sys.argv[1:])
    # If a KeyboardInterrupt leaves a text that is run by exec, such as that of a new dataclass, CPython notes it, and
    # ends by SIGINT in place of the status, although it was caught. The next exec of a text resets the note.
    # Source: CPython, Python/pythonrun.c, run_eval_code_obj.
    exec("")
    raise SystemExit(status)
