"""The lab's commands under one name.

probe-lab COMMAND [WORDS ...]        the same as python -m MODULE [WORDS ...]

probe-lab fit configs/cpu_demo.yaml --resume
probe-lab probe runs/cpu_demo --tests=500 --plot
probe-lab ruler --help
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from lab.command import HELP, WRONG, show
from lab.schema import nearest

COMMANDS = {  # name: module and purpose
    "fit": ("lab.fit", "train a model"),
    "sweep": ("lab.sweep", "train the runs of a sweep"),
    "prepare": ("lab.prepare", "tokenize a corpus to shards"),
    "verify": ("lab.verify", "check every file of a run, a checkpoint or shards"),
    "longrecipe": ("lab.longrecipe", "extend a model by LongRecipe"),
    "merge": ("lab.merge", "merge trained models"),
    "export": ("lab.export", "write a run as a Hugging Face folder"),
    "probe": ("eval.probe", "effective context length"),
    "distance": ("eval.distance", "share of numbers found by distance, and how far back"),
    "heatmap": ("eval.heatmap", "numbers found by depth and length"),
    "methods": ("eval.methods", "position methods on the same tests"),
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
    "report": ("eval.report", "one page of any number of runs"),
    "picture": ("eval.picture", "one picture of a run, or of several"),
}


def listing() -> str:
    """List the commands."""
    return "\n".join([str(__doc__), *(f"  {name:<12}{module:<18}{text}" for name, (module, text) in COMMANDS.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first word names, in this process, and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in HELP:
        show(listing())
        return 0 if words else WRONG
    if words[0] not in COMMANDS:
        show(f"{words[0]}: unknown command; {nearest(words[0], COMMANDS)}", error=True)
        return WRONG
    sys.argv = [f"probe-lab {words[0]}", *words[1:]]
    runpy.run_module(COMMANDS[words[0]][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
