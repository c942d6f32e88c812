"""Measure retrieval accuracy of a passkey by depth and length: a number hidden in filler, asked for at the end.

    probe-lab passkey MODEL [--option=value ...] [-o FOLDER]

Each cell is a depth at a length, in the model's own tokens, with exact 95% limits:

    probe-lab passkey models/Llama-2-13B --lengths=4096,8192,16384
    probe-lab passkey runs/cpu_demo --lengths=128,192,256,384 --depths=5
    probe-lab passkey runs/tiny_2k --protocol=lab --haystack=essays.txt --tests=50

Position methods take the place of the model's own, for instance Dual Chunk Attention and its ablation
(arXiv:2402.17463, Figure 4), whose parts are intra, intra_inter or all:

    probe-lab passkey runs/tiny_2k --lengths=4096,8192 --distance=dca:train_len=2048,parts=intra_inter

There are two protocols, and every row names its own. `passkey` is the test that the field compares by (Mohtashami,
Jaggi 2023, as appendix A.1 of arXiv:2402.17463 uses it). It has five lines. The second and fourth are the same five
sentences of filler again and again, cut at any letter:

    task / filler / The pass key is 71432. Remember it. 71432 is the pass key. / filler / What is the pass key? ...

`lab` asks in the words that the lab's own small models are trained on. It hides one needle of the four-needle test in
filler of the run's corpus, cut between words. The number has the corpus's number of digits. A depth d puts d of the
filler before the number. Three things differ from the released scripts. The key has exactly its number of digits
(theirs is drawn from 1 to 50,000). Prompt and answer fill the length in the model's own tokens, as exactly as a letter
or word more of filler allows (theirs counts letters). The first number of the answer must be the key (theirs compares
the first tokens).

Prints a table. Adds a line for each test, with its key and answer, and for each cell to passkey-NAME-HASH.jsonl. A
second call continues from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from eval.engine import answers, cases, command, run
from eval.engine.random_words import sample_number
from eval.engine.subject import SUBJECT
from eval.engine.text import pivot, to_text
from eval.engine.texts import read_text
from lab.core.command import start
from lab.core.schema import Length, PathText, Tests
from lab.core.types import Row
from lab.data import config, synthetic
from lab.probe import needles

Protocol = Literal["passkey", "lab"]
QUESTION = "What is the pass key? The pass key is"
READERS: dict[Protocol, answers.Read] = {"passkey": answers.first_digits, "lab": needles.first_numbers}


@dataclass(frozen=True, kw_only=True)
class PasskeyOptions(command.CellOptions):
    """Options of this command."""

    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together; default: powers of two from a quarter
    of the training window up to 2x the window, those with room for a test."""
    depths: Annotated[int, Ge(2), Le(101)] = 11
    """Depths, evenly spaced from the filler's beginning to its end."""
    tests: Tests = 20
    """Tests of each cell."""
    protocol: Protocol | None = None
    """Protocol: passkey, the usual one, or lab, in the wording of the synthetic corpus; default: lab for runs
    on that corpus, else passkey."""
    haystack: PathText | None = None
    """Text file to hide the number in, of the lab's protocol; default: fresh text of the run's corpus."""

    def rules(self) -> list[str]:
        if self.haystack is not None and self.protocol != "lab":
            what = f"haystack={self.haystack}: would be ignored, the passkey protocol has filler of its own"
            return [f"{what}; add --protocol=lab or leave it out"]
        return []


def draft(digits: int, filler: str, depth: float, seed: int, index: int) -> cases.Draft:
    """Sample all of a test that does not depend on the length; without filler, one of the passkey protocol.

    The key and the filler's beginning are a function of seed and index, the same at every length and depth.
    """
    rng = np.random.default_rng([seed, index])
    key = sample_number(rng, digits)
    compose = compose_letters(key, depth)
    if filler:
        compose = compose_words(filler, key, depth, rng)
    return cases.Draft(compose, 0, (key,), lambda units: {"depth": depth, "filler_units": units})


def compose_letters(key: str, depth: float) -> Callable[[int], str]:
    """Return a function that writes the prompt of the passkey protocol with a number of letters of filler."""

    def compose(letters: int) -> str:
        before = round(depth * letters)
        # One copy of the filler more than the letters need, so that any slice of them is full.
        endless = f"{cases.NOISE} " * (1 + letters // len(cases.NOISE))
        task = synthetic.TASK.rstrip("\n")
        return "\n".join(
            [
                task,
                endless[:before],
                f"The pass key is {key}. Remember it. {key} is the pass key.",
                endless[: letters - before],
                QUESTION,
            ]
        )

    return compose


def compose_words(filler: str, key: str, depth: float, rng: np.random.Generator) -> Callable[[int], str]:
    """Return a function that writes the prompt of the lab's protocol with a number of words; the filler has no end."""
    start = needles.next_word(filler, int(rng.integers(len(filler))))
    whole = f"{filler[start:]} {filler[:start]}".split()

    def compose(count: int) -> str:
        text = list(islice(cycle(whole), count))
        before = round(depth * count)
        # The needle begins with the space that separates it from the text before.
        hay = (" ".join(text[:before]) + synthetic.NEEDLE.format(number=key)).lstrip()
        if before < count:
            hay += f" {' '.join(text[before:])}"
        return synthetic.TASK + hay + synthetic.QUESTION + synthetic.ANSWER_PREFIX

    return compose


class Passkey(run.Measure):
    """Retrieval accuracy at each depth and length."""

    kind = "passkey"
    options: PasskeyOptions
    spec = command.EvaluationSpec(options=PasskeyOptions, excluded=("--plot",))
    named_by = (*SUBJECT, "protocol", "digits", "filler", "answer_budget", "n", "seed", "length", "depth")

    def prepare(self) -> None:
        """Choose the protocol, its filler and the lengths."""
        options = self.options
        subject = self.subject
        experiment = subject.model.experiment
        corpus = None if experiment is None else experiment.data.corpus
        self.protocol = options.protocol or "passkey"
        self.digits = 5
        if isinstance(corpus, config.Synthetic):
            # Such a run was trained on the wording of the lab's protocol, and on numbers of so many digits.
            self.protocol = options.protocol or "lab"
            if self.protocol == "lab":
                self.digits = corpus.digits
        self.filler, source = "", None
        if self.protocol == "lab":
            self.filler, source = read_text(subject, options.haystack, option="--haystack")
        self.writer = cases.Writer(subject.tokenizer)
        self.budget = answers.answer_budget(self.writer, self.digits, 16, READERS[self.protocol])
        fixed = [self.writer.count(self.draft(index, 0.0).compose(0)) for index in range(options.tests)]
        window = subject.model.train_len
        what, ends = f"the {self.protocol} protocol", (max(1, window // 4), subject.cap_length(2 * window))
        self.lengths = answers.choose_lengths(options.lengths, what, max(fixed), self.budget, ends)
        n_tokens = self.lengths[-1] - self.budget - fixed[0]
        needles.check_enough(self.filler, subject.tokenizer, n_tokens, self.lengths[-1], source)

    def draft(self, index: int, depth: float) -> cases.Draft:
        return draft(self.digits, self.filler, depth, self.options.seed, index)

    def cells(self) -> Iterator[run.Cell]:
        """List the depths of each length."""
        shared = {
            "metric": "passkey",
            "protocol": self.protocol,
            "digits": self.digits,
            "filler": needles.hash_text(self.filler) if self.filler else None,
            "answer_budget": self.budget,
            "n": self.options.tests,
            "seed": self.options.seed,
        }
        for length in self.lengths:
            for number in range(self.options.depths):
                depth = number / (self.options.depths - 1)
                row = {**shared, "length": length, "depth": depth}
                name = f"{length:,} tokens at {depth:.0%}"
                yield run.Cell(row, self.options.tests, length, name)

    def measure(self, cell: run.Cell) -> tuple[Row, Sequence[Row]]:
        """Test one cell, a length and depth, and return its row and the row of each test."""
        depth = cell.row["depth"]
        length = cell.row["length"]
        judge = partial(answers.score_answer, read=READERS[self.protocol])

        def sample_case(index: int) -> cases.TextCase:
            return cases.finish(self.draft(index, depth), self.writer, length, self.budget)

        outcome = self.ask(cell, sample_case, budget=self.budget, length=length, judge=judge)
        return answers.summarize(outcome), outcome.records

    def title(self) -> str:
        return f"{super().title()}; {self.protocol} protocol, {self.options.tests} tests a cell"

    def text(self, rows: Sequence[Row]) -> str:
        grid = 100 * pivot(rows, "depth", "length").rename(index="{:.0%}".format, columns="{:,}".format)
        return f"retrieval accuracy (%)\n{to_text(grid, '.0f')}"


main = Passkey.main

if __name__ == "__main__":
    start(main)
