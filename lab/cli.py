"""The lab's commands under one name.

    probe-lab COMMAND [ARGUMENTS ...]

COMMAND is one of those below. In a clone python -m lab.COMMAND, or python -m eval.COMMAND, is the same:

    probe-lab fit configs/cpu_demo.yaml --resume
    probe-lab probe runs/cpu_demo --tests=500 --plot
    probe-lab distance --help
    probe-lab docs > docs/settings.md
    probe-lab --version

docs writes every setting and option of all commands as a page.

docs/install.md, "If it does not work", lists errors and their fixes.
"""

import io
import os
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from lab.core.startup import check_system

try:
    check_system()
    from lab.core.command import EXIT_BAD_INPUT, EXIT_STOPPED, HELP, NOTHING_WRITTEN, guard, show, wrap_help
    from lab.core.errors import ConfigError, suggest
    from lab.core.schema import TAGS
except KeyboardInterrupt:  # within 0.3 s
    sys.stderr.write("stopped; nothing was written\n")
    raise SystemExit(75) from None

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "Train": ("fit", "sweep", "longrecipe"),
    "Measure": (),  # all others
    "Compare": ("compare", "report", "reach", "papers"),
    "Prepare and convert": ("prepare", "demand", "frequency", "positions", "export", "merge", "verify"),
}
SETTING = re.compile(r"^ +--([\w.]+)(?:=(.*?))?  +(.*) \[(.*)\]$", re.M)  # an example has no values
PAGE = """# Commands and settings

For readers who know what they want to run and look for its name: every command, every setting of a run and every
option, written from the code by `probe-lab docs > docs/settings.md`. It assumes a run or a model. Wrong input is a line
for each error, with the rule and the fix, and exit status 2.

Lengths, distances and positions are in tokens, `_seconds` in seconds, `_bytes` in bytes; a `_frac` or a `_prob` is
between 0 and 1. A setting is a line of the YAML file, or `--name=value`. A name that is listed several times belongs to
the choice (`name` or `method`) listed before it, which has an anchor: `settings.md#position.distance.string`.
`required` settings have no default; `null` means none. CONFIG is a file, or the name of one in `configs/`, which an
installed package contains: `probe-lab fit cpu_demo` works in any folder.

| command | what it does |
|---|---|
"""


@cache
def commands() -> dict[str, tuple[str, str]]:
    """Find the commands, those of lab first: module and purpose by name.

    A command is a module, or a package with a `__main__.py`, that runs by `python -m`. Its purpose is the first line of
    its docstring, up to a colon. Modules are read and not imported, as that would take seconds.
    """
    table = {}
    for folder in (ROOT / "lab", ROOT / "eval"):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*/__main__.py")]):
            text = path.read_text("utf-8")
            if '\nif __name__ == "__main__":\n' in text and path.stem != "cli":
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
                table[module.partition(".")[2]] = (module, re.split(r": |\.?\n", text.split('"""')[1])[0])
    return table


def page() -> Iterator[str]:
    """Write docs/settings.md: a table for each command, without a run's settings that another one has listed."""
    yield PAGE
    for name, (_, purpose) in commands().items():
        yield f"| [`probe-lab {name}`](#probe-lab-{name}) | {purpose} |\n"
    shared: set[tuple[str, ...]] = set()
    for name, (_, purpose) in commands().items():
        text = read_help(name)
        rows = [row for row in dict.fromkeys(SETTING.findall(text)) if row not in shared]
        usage = re.findall(r"^    (probe-lab .*)$", text, re.M)
        yield f"\n## probe-lab {name}\n\n{purpose}.\n\n`{usage[0]}`\n"
        if rows:
            yield "\n| setting | default | values | meaning |\n|---|---|---|---|\n"
        for setting, default, meaning, values in rows:
            section, _, last = setting.rpartition(".")
            shown = f"`{default}`" if default else ""
            # Pages link to the members of a union, whose tags have one value.
            if section and last in TAGS and values == default:
                shown = f'<a id="{section}.{default}"></a>{shown}'
            cells = (f"`{setting}`", shown, values, meaning)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
        shared |= {row for row in rows if "." in row[0]}


def read_help(command: str) -> str:
    """Return what --help=all of a command prints."""
    words = sys.argv
    os.environ["COLUMNS"] = "10000"  # a line for each setting
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([command, "--help=all"])
    sys.argv = words
    return printed.getvalue()


def list_commands() -> str:
    """Write the first page: how to call the commands, and their purposes by group."""
    text = str(__doc__)
    for group, names in GROUPS.items():
        text += f"\n{group}:\n\n"
        for name in names or sorted(commands().keys() - sum(GROUPS.values(), ())):
            text += f"  {name:<20}  {commands()[name][1]}\n"
    return wrap_help(text)


def find_module(command: str) -> str:
    """Return the module of a command.

    Raises: ConfigError for an unknown command, and where another package of the same name hides the module.
    """
    if command not in commands():
        raise ConfigError(f"{command}: unknown command; {suggest(command, [*commands(), 'help', 'docs'])}")
    module, _ = commands()[command]
    if find_spec(module) is None:  # as PYTHONPATH, or the folder of `python -m`, has a package lab or eval
        raise ConfigError(
            f"{module}: another package {module.partition('.')[0]} is found first; use another folder and no PYTHONPATH"
        )
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first word names, in this process, and return the exit status."""
    guard()
    if arguments is None:
        arguments = sys.argv[1:]
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in HELP:
        show(list_commands(), end="")
        return 0 if words else EXIT_BAD_INPUT
    if words == ["--version"]:
        show(f"probe-lab {version('probe-lab')}")
        return 0
    if words[0] == "docs":
        show("".join(page()) if words == ["docs"] else "probe-lab docs > docs/settings.md\n", end="")
        return EXIT_BAD_INPUT if {*words[1:]} - {*HELP} else 0
    try:
        module = find_module(words[0])
    except ConfigError as error:
        show(error, error=True)
        return EXIT_BAD_INPUT
    # The command's module runs as by `python -m`, and reads its arguments from sys.argv.
    sys.argv = [f"probe-lab {words[0]}", *words[1:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # while the command's module imports others
        show(NOTHING_WRITTEN, error=True)
        return EXIT_STOPPED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
