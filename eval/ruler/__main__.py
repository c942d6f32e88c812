"""Measure a model on RULER's 13 tasks: retrieval, multi-hop tracing, aggregation, question answering.

    probe-lab ruler MODEL [--option=value ...] [-o FOLDER]

A test of a length takes at most that many of the model's own tokens, answer included:

    probe-lab ruler models/Llama-3.1-8B --haystack=pg.txt --squad=dev.json --hotpotqa=hotpot.json --words=wonderwords
    probe-lab ruler runs/tiny_2k --lengths=1024,2048 --tests=100
    probe-lab ruler runs/tiny_2k --last=5 --lengths=2048
    probe-lab ruler runs/cpu_demo --tasks=niah_single_1,vt --lengths=448,512 --answer_budget=40 --tests=20
    probe-lab ruler runs/tiny_2k --distance=string:shift=683,window=128 --lengths=2048

Without --squad or --hotpotqa the task that reads the file is not run. Without a file of essays made-up text takes its
place, as fewer words do without --words. The results name it under `standins`. Such scores are not those of other
people. Prints a table, and writes to eval/ of the run folder (results/ruler-NAME for a Hugging Face folder), or FOLDER.
ruler-NAME-HASH.jsonl gets a line for each test, with its expected and actual answer, and for each task and length. A
second call continues from there.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import pandas as pd

from eval.engine.cases import ChatOptions, TextCase
from eval.engine.run import Cell, Measure
from eval.engine.subject import SUBJECT, doublings, open_subject
from eval.engine.text import to_text
from eval.ruler.sources import STANDIN, Turn, name_source, read_sources
from eval.ruler.tasks import LLAMA2_7B_AT_4K, TASKS, VERSION, Task, averages, effective_length, wilson_interval
from lab.core.command import Bar, show, start
from lab.core.errors import suggest
from lab.core.schema import Length, PathText, Tests
from lab.core.types import Row
from lab.loading import newest_checkpoints


class RulerOptions(ChatOptions):
    """Options of this command."""

    tasks: tuple[str, ...] | None = None
    """Tasks, with commas between them; default: all 13, or those that have their files."""
    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together; default: powers of two from 4096 up to
    the training window, or a smaller window."""
    tests: Tests = 500
    """Tests of each task at each length."""
    haystack: PathText | None = None
    """Essays to hide needles in, a text file (.txt, .json with `text`, .jsonl); default: made-up text."""
    squad: PathText | None = None
    """SQuAD 2.0's JSON file, for qa_1; default: none, without that task."""
    hotpotqa: PathText | None = None
    """HotpotQA's JSON file, for qa_2; default: none, without that task."""
    words: Literal["wonderwords"] | None = None
    """Package with the words of cwe, RULER's (pip install -e '.[ruler]'); default: fewer words of the lab's own."""
    answer_budget: Length | None = None
    """Tokens of each length that are left for the answer, or what answers take in this tokenizer where that is more;
    default: RULER's, 30 to 128 by task."""
    last: Length | None = None
    """Checkpoints of a run folder to average over, the newest ones; default: MODEL itself."""

    def rules(self) -> list[str]:
        """Reject tasks that do not exist, and those named without their file."""
        errors = []
        for name in self.tasks or ():
            if name not in TASKS:
                errors.append(f"tasks={name}: no such task; {suggest(name, TASKS)}")
            elif option := self.without_file.get(name):
                errors.append(f"tasks={name}: needs a file of questions; name it by {option}, or leave the task out")
        return errors

    @property
    def without_file(self) -> dict[str, str]:
        """The options that tasks without their file of questions need."""
        files = {"qa_1": "squad", "qa_2": "hotpotqa"}
        return {task: f"--{option}" for task, option in files.items() if getattr(self, option) is None}

    @property
    def selected_tasks(self) -> list[Task]:
        """The tasks that are named, or all that have their files."""
        names = self.tasks or [name for name in TASKS if name not in self.without_file]
        return [task for name, task in TASKS.items() if name in names]


class Ruler(Measure):
    """RULER's tasks at several lengths, on one checkpoint or the newest ones."""

    kind = "ruler"
    options: RulerOptions
    named_by = (*SUBJECT, "protocol", "version", "task", "length", "n", "seed", "answer_budget", "source", "chat")

    def prepare(self) -> None:
        """Read the sources, choose the lengths, and make sure that all tests can be sampled before any of them runs."""
        options = self.options
        self.writer = options.writer(self.subject)
        self.places = newest_checkpoints(self.request.model, options.last) if options.last else []
        self.sources = read_sources(
            essays=options.haystack, squad=options.squad, hotpotqa=options.hotpotqa, words=options.words
        )
        # RULER's first length is 4096.
        self.lengths = sorted({*(options.lengths or doublings(4096, self.subject.model.train_len))})
        self.budgets: dict[Task, int] = {}
        for task in Bar(options.selected_tasks, desc="sampling", leave=False):
            least = task.least_budget(self.writer, self.sources)
            self.budgets[task] = max(options.answer_budget or task.budget, least)
            for index in range(options.tests):
                task.draft(self.turn(task, self.lengths[0], index))
            # The longest tests may use up a source.
            self.case(task, self.lengths[-1], 0)
        if options.tasks is None and options.without_file:
            needed = " and ".join(f"{name} ({option})" for name, option in options.without_file.items())
            show(f"no file of questions: {needed} not run: {len(options.selected_tasks)} tasks", error=True)

    def turn(self, task: Task, length: int, index: int) -> Turn:
        return task.turn(self.writer, self.sources, length, self.budgets[task], self.options.seed, index)

    def case(self, task: Task, length: int, index: int) -> TextCase:
        return task.case(self.turn(task, length, index))

    def cells(self) -> Iterator[Cell]:
        """List the tasks at each length."""
        for length in self.lengths:
            for task in self.options.selected_tasks:
                source = name_source(self.sources[task.source]) if task.source else None
                row = {
                    "protocol": "ruler",
                    "version": VERSION,
                    "task": task.name,
                    "category": task.category,
                    "length": length,
                    "n": self.options.tests,
                    "seed": self.options.seed,
                    "answer_budget": self.budgets[task],
                    "source": source,
                    "chat": self.options.chat,
                    "standins": [task.source] if source == STANDIN else [],
                }
                yield Cell(row, self.options.tests, length, f"{task.name} at {length:,}")

    def measure(self, cell: Cell) -> Row:
        """Run the tests of one task at one length: their mean score in percent, and its interval."""
        task = TASKS[cell.row["task"]]
        case = partial(self.case, task, cell.tokens)
        outcome = self.ask(cell, case, budget=self.budgets[task], judge=task.score_answer)
        scores = [float(record["score"]) for record in outcome.records]
        low, high = wilson_interval(scores)
        score = 100 * (sum(scores) / len(scores))
        return {"score": score, "low": 100 * low, "high": 100 * high, "seconds": outcome.seconds}

    def rows(self) -> Iterator[Row]:
        """Measure each checkpoint, and average over them."""
        rows: list[Row] = []
        for place in self.places or [self.request.model]:
            if self.places:
                self.subject = open_subject(self.request._replace(model=place))
            rows += super().rows()
        measured = pd.DataFrame(rows)
        # A mean over checkpoints, as arXiv:2411.13476, section 4, recommends of the last five
        self.scores = measured.groupby(["task", "length"], sort=False)["score"].mean().reset_index()
        self.standins = measured["standins"].explode().dropna().unique().tolist()
        names = measured["checkpoint"].unique().tolist()
        about = {"model": rows[0]["model"], "checkpoints": names, "method": rows[0]["method"], "tests": rows[0]["n"]}
        for row in self.scores.to_dict("records"):
            yield {**about, **row}

    def title(self) -> str:
        title = f"{super().title()}, {self.options.tests} tests each"
        if self.options.last:
            title += f", mean of {self.options.last} checkpoints"
        return title

    def text(self, rows: Sequence[Row]) -> str:
        """Write a row for each task and category, a column for each length, and the stand-ins."""
        tasks = self.scores.pivot(index="task", columns="length", values="score").loc[self.scores["task"].unique()]
        means = averages(self.scores)
        whole = pd.concat([tasks, means]).rename_axis("task").rename(columns="{:,}".format)
        reached = f"effective length {effective_length(means):,} at threshold {LLAMA2_7B_AT_4K:g}"
        lines = [to_text(whole, ".1f"), "", f"{reached}, over {len(tasks)} of 13 tasks"]
        if self.standins:
            lines.append(f"stand-ins: made-up text in place of {', '.join(self.standins)}")
        return "\n".join(lines)


main = Ruler.main


if __name__ == "__main__":
    start(main)
