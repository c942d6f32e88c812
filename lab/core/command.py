"""Parts that all commands share: the command line, help, printing, progress bars, one line per fault, exit status.

argparse reads a command's options, such as -o and --plot. Every other --name=value is a setting, which lab.core.schema
checks. --help is short; --help=all lists every setting.
"""

import argparse
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from itertools import islice, takewhile
from typing import Any, NamedTuple, NoReturn, TextIO

from tqdm import tqdm

from lab.core.errors import ConfigError, LabError, abbreviate, is_short
from lab.core.files import on_disk
from lab.core.output import guard
from lab.core.plugins import TRUSTED
from lab.core.schema import TAGS, Section, adapter, describe_values, read_docs, settings_in, validated
from lab.core.yaml import parse_yaml

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # by a signal, after saving
CONTINUES = "stopped; the same command continues"
NOTHING_WRITTEN = "stopped; nothing was written"
STATUSES = "Exit status: 0 done; 2 invalid input, one line per fault on stderr; 75 stopped by a signal."
HELP = ("-h", "--help", "--help=all")
TEXTS = {  # the last words of settings that are text, whatever it looks like
    "chat_template", "corpus", "eos", "evaluator", "figures", "folder", "haystack", "hotpotqa", "include_path",
    "name", "path", "repository", "score", "squad", "tagger", "text"
}  # fmt: skip
REFRESH_S = 0.2
LOG_REFRESH_S = 10.0  # where the output is a file, a line this often is enough
SHOWN = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


class Arguments(NamedTuple):
    """The arguments before the options, the options, and the settings by name."""

    positional: list[str]
    options: argparse.Namespace
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """What a command takes, and what its help says."""

    description: str | None = ""
    """Text of --help."""
    positional: int | None = 1
    """Largest number of arguments before the options; None for any."""
    flags: tuple[str, ...] = ()
    """Options without a value."""
    values: tuple[str, ...] = ()
    """Options with one value."""
    lists: tuple[str, ...] = ()
    """Options with several values, which may be repeated."""
    missing: str = ""
    """Error if no argument comes before the options; {word} is the first one."""
    options: type[Any] | None = None
    """Class of the command's settings, which --help=all lists."""
    settings: Callable[[], Sequence[str]] = tuple
    """Function that lists the settings for --help=all, of a command without such a class."""
    stopped: str = NOTHING_WRITTEN
    """Message after Ctrl-C."""

    def list_settings(self) -> list[str]:
        return list(self.settings()) if self.options is None else settings_lines(self.options)

    def read(self, arguments: Sequence[str]) -> Arguments:
        """Read a command line.

        Raises: ConfigError.
        Example:
            >>> CommandSpec(values=("-o",)).read(["run", "--n=3", "-o", "out", "--fast"])
            Arguments(positional=['run'], options=Namespace(o='out'), settings={'n': 3, 'fast': True})
        """
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
        for word in positional:
            check_path(word)
        for name in self.values:
            check_path(getattr(options, name.lstrip("-")) or "", f"{name}=")
        if not positional and self.missing:
            raise ConfigError(self.missing.format(word=arguments[0]))
        for word in rest[len(positional) :]:
            if f"-{word}" in (*self.flags, *self.values, *self.lists):
                raise ConfigError(f"{word}: is not an option; write -{word}")
        return Arguments(positional, options, parse_overrides(rest[len(positional) :]))


def check_path(path: str, option: str = "") -> None:
    if not is_short(path):
        raise ConfigError(f"{option}{abbreviate(path)}: too long for a path, or not in one line; give a shorter one")


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `--a.b=value` and `--a.b value`; values are YAML, and true where there is none.

    Raises: ConfigError.
    Example:
        >>> parse_overrides(["--optim.lr=1e-3", "--run.name", "1e3", "--fast"])
        {'optim.lr': 0.001, 'run.name': '1e3', 'fast': True}
    """
    overrides: dict[str, Any] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"{abbreviate(word)}: not a setting; write --section.key=value")
        if key in overrides:
            raise ConfigError(f"--{key}: is given twice; keep one of them")
        is_text = key.rpartition(".")[2] in TEXTS and key != "data.corpus"
        if not equals:
            has_value = bool(left) and not left[0].startswith("--")
            text = left.pop(0) if has_value else "" if is_text else "true"
        if is_text and not text:
            raise ConfigError(f"--{key}=: must not be empty; write --{key}=VALUE, or leave it out")
        as_written = is_text and text != "null" and not text.startswith(('"', "'"))
        overrides[key] = text if as_written else parse_value(text, f"--{abbreviate(key)}")
    return overrides


def parse_value(text: str, name: str) -> Any:
    """Read an option's value as YAML; of a value that is text, without quotes, every character counts.

    Raises: ConfigError, also for what YAML would cut off as a comment.
    Example:
        >>> parse_value("1e-3", "--x"), parse_value("a #b", "--x"), parse_value('"a"', "--x")
        (0.001, 'a #b', 'a')
    """
    value = parse_yaml(text, name)
    if " #" in text and not isinstance(value, str):
        raise ConfigError(f"{name}={abbreviate(text)}: YAML takes what follows # for a comment; leave it out")
    return text if isinstance(value, str) and not text.startswith(('"', "'")) else value


def parse_method(word: str, option: str) -> dict[str, Any]:
    """Read NAME or NAME:parameter=value,... as the settings of a method; `option` names it in fault lines.

    Raises: ConfigError.
    Example:
        >>> parse_method("string:shift=64,window=32", "--distance")
        {'method': 'string', 'shift': 64, 'window': 32}
    """
    name, _, text = word.partition(":")
    if not name:
        raise ConfigError(
            f"{option}={abbreviate(word)}: must be NAME or NAME:parameter=value,...; write string:shift=64,window=32"
        )
    try:
        parameters = parse_overrides([f"--{part}" for part in text.split(",") if part])
    except ConfigError as error:
        raise ConfigError(*(f"{option}.{fault.removeprefix('--')}" for fault in error.faults)) from error
    return {"method": name, **parameters}


def read_options(options_class: type[Any], settings: Mapping[str, Any], faults: Sequence[str] = ()) -> Any:
    """Build a command's options from the settings; `faults` were found elsewhere on the command line.

    `64,128`, `64` and `vt,cwe` are lists where an option is a list.

    Raises: ConfigError with all faults, fields named as they are written on the command line.
    """
    lists = [field.name for field in fields(options_class) if "tuple" in str(field.type)]
    values = {name: as_list(value, name) if name in lists else value for name, value in settings.items()}
    faults = [*faults, *(f"--{name}=[]: must not be empty; leave it out" for name in lists if settings.get(name) == [])]
    try:
        options = validated(options_class, values)
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


def settings_lines(
    options_class: type[Section], names: Iterable[str] | None = None, prefix: str = "", heading: str = "Settings"
) -> list[str]:
    """Describe settings, all or those named: default, meaning and values, a method as the heading of its own."""
    listed = [one for one in settings_in(options_class, prefix) if names is None or one[0] in names]
    times = Counter(name for name, *_ in listed)
    lines = [f"{heading} (default; meaning):", ""]
    inside = "."
    for name, item, section, hint in listed:
        heads = times[name] > 1 and item.name in TAGS
        inside = name.removesuffix(item.name) if heads else inside
        start = "\n  " if heads else "    " if name.startswith(inside) else "  "
        default = item.default if item.default_factory is MISSING else item.default_factory()
        value = "required" if default is MISSING else json.dumps(default, default=str)
        meaning = read_docs(section).get(item.name) or (str(section.__doc__) if item.name in TAGS else "")
        text = " ".join(meaning.partition("\n\n")[0].split())
        value = value.strip('"') if heads else value
        values = describe_values(adapter(hint).json_schema())
        lines.append(f"{start}--{name}={value}\n      {text} [{values}]")
    return lines


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
        self.stream.write(f"{text.strip()}\n" if text.strip() else "")


class Bar(tqdm):  # type: ignore[misc]
    """Counts what is done on stderr: a bar on a terminal, in a file or pipe a plain line every few seconds.

    What remains follows from the mean rate since the start, which includes probes and saves.
    """

    def __init__(self, iterable: Any = None, *, desc: str, **settings: Any) -> None:
        self.on_terminal = sys.stderr.isatty()
        whole = {
            "smoothing": 0,
            "file": sys.stderr if self.on_terminal else Lines(sys.stderr),
            "mininterval": REFRESH_S if self.on_terminal else LOG_REFRESH_S,
            "delay": 0 if self.on_terminal or settings.get("leave", True) else LOG_REFRESH_S,  # of short steps
            "bar_format": "{desc}: {percentage:3.0f}%" + ("|{bar:20}| " if self.on_terminal else " ") + SHOWN,
        }
        super().__init__(iterable, desc=desc, **{**whole, **settings})

    def count_finished(self, n: int) -> None:
        """Count what an earlier call has finished, which tells nothing about the rate."""
        self.initial += n
        self.update(n)

    def name(self, text: str) -> None:
        self.set_postfix_str(text, refresh=self.on_terminal)


# tqdm's own lock is also one between processes: a forked child that is killed while it holds it stops its parent.
Bar.set_lock(threading.RLock())


def run(
    spec: CommandSpec,
    work: Callable[[Arguments], str | int],
    arguments: Sequence[str],
    *,
    report: Callable[[str], object] = partial(show, error=True),
) -> int:
    """Run a command and return the exit status.

    Text that `work` returns is printed, an exit status returned. --help prints the description, --help=all also the
    settings; --trust executes code that files name. `report` prints a LabError, and the message after a Ctrl-C.
    """
    guard()
    TRUSTED.set("--trust" in arguments)
    arguments = [word for word in arguments if word != "--trust"]
    if not arguments or {*HELP} & {*arguments}:
        lines = spec.list_settings()
        if lines and "--help=all" not in arguments:
            lines = ["--help=all lists every setting, its default and meaning."]
        show("\n".join([str(spec.description) + STATUSES, *lines]))
        return 0 if arguments else EXIT_BAD_INPUT
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
    """Run a command in this process; SIGTERM stops it as Ctrl-C does, and so does a closed terminal without nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    raise SystemExit(main(sys.argv[1:]))
