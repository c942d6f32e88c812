"""The settings of `python -m eval.ruler`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from eval.ruler.results import LLAMA2_7B_AT_4K
from eval.ruler.tasks import ALL, TASKS, Task
from lab.schema import Length, PathText, Section, Seed, Tests

BATCH_TOKENS, MOST_ROWS = 65_536, 64  # of prompts side by side where no batch is set


@dataclass(frozen=True, kw_only=True)
class RulerOptions(Section):
    """Options of this command."""

    tasks: tuple[str, ...] | None = None
    """Tasks, with commas between them; left out, all 13."""
    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together; left out, powers of two from 4096 up to
    the training window, or, for a smaller window, the first power of two with room for all tasks."""
    tests: Tests = 500
    """Tests of each task at each length."""
    seed: Seed = 0
    """Seed of the tests."""
    haystack: PathText | None = None
    """Essays to hide needles in: a text file (.txt, .json with `text`, .jsonl) or a folder; left out, made-up text."""
    squad: PathText | None = None
    """SQuAD 2.0's JSON file, for qa_1; left out, made-up people."""
    hotpotqa: PathText | None = None
    """HotpotQA's JSON file, for qa_2; left out, made-up people."""
    words: Literal["wonderwords"] | None = None
    """Package with the words of cwe, RULER's (pip install -e '.[ruler]'); left out, fewer words of the lab's own."""
    answer_budget: Length | None = None
    """Tokens of each length that are left for the answer; left out, RULER's, 30 to 128 by task, or what answers take in
    this tokenizer where that is more."""
    last: Length | None = None
    """Checkpoints of a run folder to average over, the newest ones; left out, MODEL itself."""
    threshold: Annotated[float, Ge(0), Le(100)] = LLAMA2_7B_AT_4K
    """Average score, in percent, that a length must reach for the effective length; RULER's is Llama2-7B's at 4K."""
    batch: Tests | None = None
    """Prompts that generate side by side; left out, 65536 tokens of them, 64 prompts at most."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rules(self) -> list[str]:
        """Refuse tasks that do not exist or are given twice, and files that no task would read."""
        faults = [f"tasks={name}: no such task; {nearest(name)}" for name in self.tasks or () if name not in TASKS]
        for name, values in (("tasks", self.tasks or ()), ("lengths", self.lengths or ())):
            twice = sorted({value for value in values if values.count(value) > 1})
            faults += [f"{name}={value}: is given twice; keep one of them" for value in twice]
        for name, source in (("haystack", "essays"), ("squad", "squad"), ("hotpotqa", "hotpotqa"), ("words", "words")):
            users = [task.name for task in ALL if task.source == source]
            if getattr(self, name) is not None and self.tasks is not None and not {*users} & {*self.tasks}:
                faults.append(
                    f"{name}={getattr(self, name)}: would be ignored by these tasks; leave it out or add {users[0]}"
                )
        return faults

    def rows(self, length: int) -> int:
        """Choose how many prompts of a length run side by side.

        Example:
            >>> [RulerOptions().rows(length) for length in (256, 8192, 131072)]
            [64, 8, 1]
        """
        return self.batch or max(1, min(MOST_ROWS, BATCH_TOKENS // length))

    @property
    def chosen(self) -> list[Task]:
        """The tasks in RULER's order."""
        return [task for task in ALL if self.tasks is None or task.name in self.tasks]


def nearest(name: str) -> str:
    """Name the task that was probably meant."""
    near = difflib.get_close_matches(name, TASKS, n=1)
    return f"did you mean {near[0]}?" if near else f"use some of: {', '.join(TASKS)}"
