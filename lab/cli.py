"""The lab's commands under one name.

probe-lab COMMAND [WORDS ...]        the same as python -m MODULE [WORDS ...]

probe-lab fit configs/cpu_demo.yaml --resume
probe-lab probe runs/cpu_demo --tests=500 --plot
probe-lab ruler --help
probe-lab docs > docs/settings.md    every setting and option of all commands, as a page
"""

from __future__ import annotations

import io
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress

from lab.command import HELP, WRONG, show
from lab.errors import nearest

COMMANDS = {  # name: module and purpose
    "fit": ("lab.fit", "train a model"),
    "sweep": ("lab.sweep", "train the runs of a sweep"),
    "prepare": ("lab.prepare", "tokenize a corpus to shards"),
    "verify": ("lab.verify", "check every file of a run, a checkpoint or shards"),
    "longrecipe": ("lab.longrecipe", "extend a model by LongRecipe"),
    "merge": ("lab.merge", "merge trained models"),
    "export": ("lab.export", "write a run as a Hugging Face folder"),
    "probe": ("eval.probe", "effective context length, by depth and by method"),
    "distance": ("eval.distance", "share of numbers found by distance, and how far back"),
    "ruler": ("eval.ruler", "RULER's 13 tasks"),
    "passkey": ("eval.passkey", "passkey retrieval by depth and length"),
    "lines": ("eval.lines", "line retrieval"),
    "perplexity": ("eval.perplexity", "perplexity by context length"),
    "harness": ("eval.harness", "tasks of lm-evaluation-harness"),
    "compare": ("eval.compare", "results of any evaluations as one table"),
    "positions": ("eval.positions", "relative positions of a method, and how often they were trained"),
    "shape": ("eval.shape", "plan the shape of a run's position frequency"),
    "entropy": ("eval.entropy", "attention entropy"),
    "precision": ("eval.precision", "what bfloat16 does to RoPE"),
    "impact": ("eval.impact", "impactful tokens of LongRecipe"),
    "plan": ("eval.plan", "reach to expect of a corpus, a window and a number of tokens"),
    "reach": ("eval.reach", "reach explained by f, tokens, window and base, with limits"),
    "papers": ("eval.papers", "a table or figure of a paper, ours beside theirs"),
    "report": ("eval.report", "one page, or one picture, of any number of runs"),
}

SETTING = re.compile(r"^ +--([\w.]+)(?:=(.*))?\n +(.*?)(?: \[([^\n]*)\])?$", re.M)
USAGE = re.compile(r"^    (python -m .*)$", re.M)
PAGE = """# Settings

Every setting of a run and every option of a command, written from the code by `probe-lab docs > docs/settings.md`.
Lengths, distances and positions are in tokens, `_seconds` in seconds, `_bytes` in bytes; a `_frac` or a `_prob` lies
between 0 and 1. A setting is a line of the YAML file, or `--name=value`. A name that is listed several times belongs to
the choice (`name` or `method`) listed before it. `required` settings have no default; `null` means left out.
"""


def listing() -> str:
    """List the commands."""
    return "\n".join([str(__doc__), *(f"  {name:<12}{module:<18}{text}" for name, (module, text) in COMMANDS.items())])


def page() -> Iterator[str]:
    """Write docs/settings.md: a table for each command, without a run's settings that another one has listed."""
    yield PAGE
    shared: set[tuple[str, ...]] = set()
    for name, (_, purpose) in COMMANDS.items():
        text = help_of(name)
        rows = [row for row in dict.fromkeys(SETTING.findall(text)) if row not in shared]
        if rows:
            yield f"\n## probe-lab {name}: {purpose}\n\n`{USAGE.findall(text)[0]}`\n"
            yield "\n| setting | default | values | meaning |\n|---|---|---|---|\n"
        for setting, default, meaning, values in rows:
            cells = (f"`{setting}`", f"`{default}`" if default else "", values, meaning)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
        shared |= {row for row in rows if "." in row[0]}


def help_of(command: str) -> str:
    """Return what --help=all of a command prints."""
    words, printed = sys.argv, io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([command, "--help=all"])
    sys.argv = words
    return printed.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first word names, in this process, and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in HELP:
        show(listing())
        return 0 if words else WRONG
    if words == ["docs"]:
        show("".join(page()), end="")
        return 0
    if words[0] not in COMMANDS:
        show(f"{words[0]}: unknown command; {nearest(words[0], COMMANDS)}", error=True)
        return WRONG
    sys.argv = [f"probe-lab {words[0]}", *words[1:]]
    runpy.run_module(COMMANDS[words[0]][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
