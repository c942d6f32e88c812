"""Measure a model on RULER's 13 tasks: retrieval, multi-hop tracing, aggregation, question answering.

    python -m eval.ruler MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. A test of a length takes at most that many of the model's own tokens, answer included:

    python -m eval.ruler models/Llama-3.1-8B --haystack=essays/ --squad=dev-v2.0.json --hotpotqa=hotpot_dev.json
    python -m eval.ruler runs/tiny_2k --lengths=1024,2048 --tests=100 --plot
    python -m eval.ruler runs/tiny_2k --last=5 --lengths=2048
    python -m eval.ruler runs/cpu_demo --tasks=niah_single_1,vt --lengths=448,512 --answer_budget=40 --tests=20
    python -m eval.ruler runs/tiny_2k --position.distance.method=string --position.distance.shift=683 \
        --position.distance.window=128 --lengths=2048

Where no file is given for essays, SQuAD or HotpotQA, made-up text takes its place, and the results name it under
`standins`; such scores are not those of other people. Prints a table, and writes to the run folder (runs/ruler-NAME for
a Hugging Face folder), or FOLDER: ruler.jsonl, a line for each checkpoint, task and length, once it is known, so that a
second call continues from there; ruler-cases/, every test with its expected and actual answer; ruler_summary.json.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le

from eval.engine.cases import TextCase, Writer
from eval.engine.command import Form
from eval.engine.rows import Found, Row
from eval.engine.run import Cell, Measure, run_measure
from eval.engine.subject import open_subject
from eval.ruler.scores import LLAMA2_7B_AT_4K, Scores, chart, summary, summed, table
from eval.ruler.sources import STANDIN, Sources
from eval.ruler.tasks import ALL, TASKS, VERSION, Task, least_budget, least_length, make_case, too_short
from lab.command import Bar, start
from lab.data.tokenizer import check_ids
from lab.draw import save
from lab.errors import ConfigError
from lab.files import write_json
from lab.schema import Length, PathText, Section, Seed, Tests
from lab.train.checkpoints import newest_checkpoints
from lab.train.environment import versions

BATCH_TOKENS, MOST_ROWS = 65_536, 64  # of prompts side by side where no batch is set
SHORTEST = 4096  # RULER's first length
QUIET_S = 2.0  # before the bar of the first drawing shows
IDENTITY = (  # rows that agree in these are results of the same measurement
    *("protocol", "version", "model", "checkpoint", "weights", "method", "precision"),
    *("task", "length", "n", "seed", "answer_budget", "source"),
)


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


class Ruler(Measure):
    """RULER's tasks at several lengths, on one checkpoint or the newest ones."""

    kind = "ruler"
    options: RulerOptions
    form = Form(options=RulerOptions, text="haystack")
    named_by = IDENTITY

    def prepare(self) -> None:
        """Read the sources, choose the lengths, and make sure that all tests can be drawn before any of them runs.

        Raises: LabError; ConfigError with a line for every budget or length that is too short for a task.
        """
        options, self.writer = self.options, Writer(self.subject.tokenizer)
        self.places: list[Path] = []
        if options.last:
            self.places = newest_checkpoints(self.request.model, options.last)
        self.sources = Sources.read(options.haystack, options.squad, options.hotpotqa, options.words)
        least_budgets = {task: least_budget(self.writer, self.sources, task) for task in options.chosen}
        wanted = options.answer_budget
        faults = [
            f"--answer_budget={wanted}: an answer to {task.name} takes {tokens} tokens; raise it"
            for task, tokens in least_budgets.items()
            if wanted is not None and tokens > wanted
        ]
        if faults:
            raise ConfigError(*faults)
        self.budgets = {task: wanted or max(task.budget, tokens) for task, tokens in least_budgets.items()}
        self.lengths, shortest = sorted(options.lengths or window_lengths(self.subject.model.train_len)), 0
        while shortest < self.lengths[0]:  # again where the first length was raised, as tasks differ by length
            shortest = self.lengths[0]
            faults, least = self.short_tasks(shortest)
            if options.lengths is not None and faults:
                raise ConfigError(*faults)
            if least > shortest:
                self.lengths = [1 << (least - 1).bit_length()]
        for task in options.chosen:
            for length in self.lengths:
                check_ids(self.case(task, length, 0).prompt_ids, self.subject.vocab_size)
        self.longest = self.lengths[-1]

    def short_tasks(self, length: int) -> tuple[list[str], int]:
        """List the tasks that a length is too short for, and give the least that is not, over all tests."""
        options, faults, most = self.options, [], 0
        for task in Bar(options.chosen, desc="drawing", leave=False, delay=QUIET_S):
            budget = self.budgets[task]
            least = least_length(self.writer, self.sources, task, length, options.seed, options.tests, budget)
            if least > length:
                faults.append(str(too_short(task, length, budget, least)))
            most = max(most, least)
        return faults, most

    def case(self, task: Task, length: int, index: int) -> TextCase:
        """Draw one test."""
        seed, budget = self.options.seed, self.budgets[task]
        return make_case(self.writer, self.sources, task, length, seed, index, budget=budget)

    def standins(self, task: Task) -> list[str]:
        """Name the sources of a task that made-up text stands in for."""
        return [task.source] if task.source and self.sources.names[task.source] == STANDIN else []

    @property
    def folder(self) -> Path:
        """The folder of the results: that of the run itself."""
        model = self.subject.model
        return self.request.folder or model.folder or Path("runs") / f"ruler-{model.name}"

    def cells(self) -> Iterator[Cell]:
        """List the tasks at each length."""
        checkpoint = self.subject.checkpoint or "model"
        for length in self.lengths:
            for task in self.options.chosen:
                row = {
                    "protocol": "ruler",
                    "version": VERSION,
                    "task": task.name,
                    "category": task.category,
                    "length": length,
                    "n": self.options.tests,
                    "seed": self.options.seed,
                    "answer_budget": self.budgets[task],
                    "source": self.sources.names[task.source] if task.source else None,
                    "standins": self.standins(task),
                    "versions": versions(),
                }
                name = f"{task.name} at {length:,}"
                yield Cell(row, self.options.tests, name, f"{checkpoint}-{task.name}-{length}")

    def measure(self, cell: Cell) -> tuple[Row, Sequence[Row]]:
        """Run the tests of one task at one length."""
        task, length = TASKS[cell.row["task"]], cell.row["length"]
        budget = self.budgets[task]
        outcome = self.ask(
            cell, lambda index: self.case(task, length, index), budget=budget, length=length, judge=task.judge
        )
        return summed(outcome), outcome.records

    def found(self) -> Found:
        """Measure each checkpoint, average over them, and write the summary beside the rows.

        Raises: LabError, KeyboardInterrupt.
        """
        options, model, folder = self.options, self.subject.model, self.folder
        each: list[Scores] = []
        names: list[str | None] = []
        for place in self.places or [self.request.model]:
            if self.places:
                self.subject = open_subject(self.request._replace(model=place))
            each.append({(row["task"], row["length"]): row["score"] for row in self.rows()})
            names.append(self.subject.checkpoint)
        # a mean over checkpoints, as arXiv:2411.13476, section 4, recommends of the last five
        scores = {cell: sum(one[cell] for one in each) / len(each) for cell in each[0]}
        about = {"model": model.name, "checkpoints": names, "method": model.method, "tests": options.tests}
        write_json(folder / "ruler_summary.json", {**about, "seed": options.seed, **summary(scores, options.threshold)})
        title = f"{model.name}: {model.method}, {options.tests} tests each"
        title += f", mean of {len(names)} checkpoints" if options.last else ""
        invented = dict.fromkeys(name for task in options.chosen for name in self.standins(task))
        lines = [title, "", table(scores, options.threshold)]
        lines += [f"stand-ins: made-up text in place of {', '.join(invented)}"] if invented else []
        picture = folder / "ruler.png" if self.request.plots else None
        if picture is not None:
            save(chart(scores, title, options.threshold, self.window_between(self.lengths)), picture)
        rows = [{**about, "task": task, "length": length, "score": score} for (task, length), score in scores.items()]
        return Found("\n".join(lines), rows, self.path, picture)


def window_lengths(train_len: int | None) -> list[int]:
    """List RULER's lengths up to the training window, or the first power of two that a smaller window holds.

    Example:
        >>> window_lengths(16384), window_lengths(2048), window_lengths(192)
        ([4096, 8192, 16384], [2048], [128])
    """
    longest = max(1, train_len or SHORTEST).bit_length() - 1
    return [1 << power for power in range(min(SHORTEST.bit_length() - 1, longest), longest + 1)]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run_measure(Ruler, arguments)


if __name__ == "__main__":
    start(main)
