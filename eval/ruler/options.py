"""The settings of `python -m eval.ruler`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le

from eval.measuring import as_list
from eval.ruler.results import LLAMA2_7B_AT_4K
from eval.ruler.tasks import ALL, TASKS, Task
from lab.errors import ConfigError
from lab.schema import NonNegative, Positive, Section
from lab.settings import Raw, all_settings, parse_overrides, take_option, validated


@dataclass(frozen=True, kw_only=True)
class RulerOptions(Section):
    """Options of this command."""

    tasks: tuple[str, ...] | None = None
    """Tasks, with commas between them; left out, all 13."""
    lengths: tuple[Positive, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together; left out, powers of two from 4096 up to
    the training window, or, for a smaller window, the first power of two with room for all tasks."""
    tests: Positive = 500
    """Tests of each task at each length."""
    seed: NonNegative = 0
    """Seed of the tests."""
    haystack: str | None = None
    """Essays to hide needles in: a text file (.txt, .json with `text`, .jsonl) or a folder; left out, made-up text."""
    squad: str | None = None
    """SQuAD 2.0's JSON file, for qa_1; left out, made-up people."""
    hotpotqa: str | None = None
    """HotpotQA's JSON file, for qa_2; left out, made-up people."""
    answer_budget: Positive | None = None
    """Tokens of each length that are left for the answer; left out, RULER's, 30 to 128 by task, or what answers take in
    this tokenizer where that is more."""
    last: Positive | None = None
    """Checkpoints of a run folder to average over, the newest ones; left out, MODEL itself."""
    threshold: Annotated[float, Ge(0), Le(100)] = LLAMA2_7B_AT_4K
    """Average score, in percent, that a length must reach for the effective length; RULER's is Llama2-7B's at 4K."""
    batch: Positive | None = None
    """Prompts that generate side by side; left out, 65536 tokens of them, 64 prompts at most."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rules(self) -> list[str]:
        """Refuse tasks that do not exist or stand twice, and files that no task would read."""
        faults = [f"tasks={name}: no such task; {nearest(name)}" for name in self.tasks or () if name not in TASKS]
        for name, values in (("tasks", self.tasks or ()), ("lengths", self.lengths or ())):
            twice = sorted({value for value in values if values.count(value) > 1})
            faults += [f"{name}={value}: stands twice; keep one of them" for value in twice]
        for name, source in (("haystack", "essays"), ("squad", "squad"), ("hotpotqa", "hotpotqa")):
            users = [task.name for task in ALL if task.source == source]
            if getattr(self, name) is not None and self.tasks is not None and not {*users} & {*self.tasks}:
                faults.append(
                    f"{name}={getattr(self, name)}: would be ignored by these tasks; leave it out or add {users[0]}"
                )
        return faults

    @property
    def chosen(self) -> list[Task]:
        """The tasks in RULER's order."""
        return [task for task in ALL if self.tasks is None or task.name in self.tasks]


class Request(NamedTuple):
    """What a command line asks for; `overrides` are the model's position methods."""

    model: Path
    options: RulerOptions
    overrides: dict[str, Any]
    output: Path | None
    plots: bool


def nearest(name: str) -> str:
    """Name the task that was probably meant."""
    near = difflib.get_close_matches(name, TASKS, n=1)
    return f"did you mean {near[0]}?" if near else f"use some of: {', '.join(TASKS)}"


def read_request(arguments: Sequence[str]) -> Request:
    """Read a command line: MODEL, options, position.* of the model, --plot and -o.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    words = list(arguments)
    if words[0].startswith("-"):
        raise ConfigError(
            f"{words[0]}: MODEL must be the first argument, a run folder, a checkpoint in it, or a Hugging Face folder"
        )
    place, plots = take_option(words, "-o"), "--plot" in words
    given = parse_overrides([word for word in words[1:] if word != "--plot"])
    overrides = {key: value for key, value in given.items() if key.startswith("position.")}
    own = {key: value for key, value in given.items() if key not in (*overrides, "plot")}
    faults = ["--plot: takes no value; leave the value out"] if "plot" in given else []
    try:
        options = validated(RulerOptions, Raw(with_lists(own), "options"))
    except ConfigError as error:
        faults += [f"--{fault}" for fault in error.faults]
    if faults:
        raise ConfigError(*faults)
    return Request(Path(words[0]), options, overrides, Path(place) if place else None, plots)


def with_lists(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read `vt,cwe` and `4096,8192` as lists.

    Example:
        >>> with_lists({"tasks": "vt,cwe", "lengths": 512, "tests": 3})
        {'tasks': ['vt', 'cwe'], 'lengths': [512], 'tests': 3}
    """
    out = dict(given)
    if "lengths" in out:
        out["lengths"] = as_list(out["lengths"])
    if isinstance(out.get("tasks"), str):
        out["tasks"] = [name.strip() for name in out["tasks"].split(",")]
    return out


def help_text(description: str) -> str:
    """Describe the command and its options."""
    lines = [description, "Options (default; meaning):", ""]
    lines += [f"  --{n}={default}\n      {' '.join(text.split())}" for n, default, text in all_settings(RulerOptions)]
    lines += ["  --plot\n      Draw scores by length as ruler.png beside the results."]
    lines += ["  --position.distance.method=NAME, --position.frequency.method=NAME, and their parameters"]
    return "\n".join([*lines, "      Position methods in place of the model's own."])
