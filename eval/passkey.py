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

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice, product
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
BUDGET = 16  # tokens for the answer, more than a number of any digits takes
QUESTION = "What is the pass key? The pass key is"
READERS: dict[Protocol, answers.Read] = {"passkey": answers.first_digits, "lab": needles.first_numbers}


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
    compose = partial(compose_letters, key, depth)
    if filler:
        start = needles.next_word(filler, int(rng.integers(len(filler))))
        compose = partial(compose_words, key, depth, f"{filler[start:]} {filler[:start]}".split())
    return cases.Draft(compose, 0, (key,), lambda units: {"depth": depth, "filler_units": units})


def compose_letters(key: str, depth: float, letters: int) -> str:
    """Write the prompt of the passkey protocol with a number of letters of filler."""
    before = round(depth * letters)
    # One copy of the filler more than the letters need, so that any slice of them is full.
    endless = f"{cases.NOISE} " * (1 + letters // len(cases.NOISE))
    needle = f"The pass key is {key}. Remember it. {key} is the pass key."
    return "\n".join([synthetic.TASK.rstrip(), endless[:before], needle, endless[: letters - before], QUESTION])


def compose_words(key: str, depth: float, words: Sequence[str], count: int) -> str:
    """Write the prompt of the lab's protocol with a number of words, which are repeated without end."""
    text = list(islice(cycle(words), count))
    before = round(depth * count)
    # The needle begins with the space that separates it from the text before.
    hay = " ".join(text[:before]) + synthetic.NEEDLE.format(number=key)
    hay = " ".join([hay.lstrip(), *text[before:]])
    return synthetic.TASK + hay + synthetic.QUESTION + synthetic.ANSWER_PREFIX


class Passkey(run.Measure):
    """Retrieval accuracy at each depth and length."""

    kind = "passkey"
    options: PasskeyOptions
    named_by = (*SUBJECT, "protocol", "digits", "filler", "answer_budget", "n", "seed", "length", "depth")

    def prepare(self) -> None:
        """Choose the protocol, its filler and the lengths."""
        options, subject = self.options, self.subject
        experiment = subject.model.experiment
        corpus = experiment and experiment.data.corpus
        self.protocol: Protocol = options.protocol or "passkey"
        self.digits = 5
        if isinstance(corpus, config.Synthetic) and options.protocol != "passkey":
            # Such a run was trained on the wording of the lab's protocol, and on numbers of so many digits.
            self.protocol, self.digits = "lab", corpus.digits
        self.filler, source = "", None
        if self.protocol == "lab":
            self.filler, source = read_text(subject, options.haystack, option="--haystack")
        self.read = READERS[self.protocol]
        self.writer = cases.Writer(subject.tokenizer)
        answers.check_numbers(self.writer, self.digits, self.read)
        fixed = [self.writer.count(self.draft(index, 0.0).compose(0)) for index in range(options.tests)]
        what = f"the {self.protocol} protocol"
        self.lengths = answers.choose_lengths(options.lengths, what, max(fixed), BUDGET, subject, windows=2)
        n_tokens = self.lengths[-1] - BUDGET - fixed[0]
        needles.check_enough(self.filler, subject.tokenizer, n_tokens, self.lengths[-1], source)

    def draft(self, index: int, depth: float) -> cases.Draft:
        return draft(self.digits, self.filler, depth, self.options.seed, index)

    def cells(self) -> Iterator[run.Cell]:
        """List the depths of each length."""
        tests = self.options.tests
        shared = {
            "metric": "passkey",
            "protocol": self.protocol,
            "digits": self.digits,
            "filler": needles.hash_text(self.filler) if self.filler else None,
            "answer_budget": BUDGET,
            "n": tests,
            "seed": self.options.seed,
        }
        for length, depth in product(self.lengths, np.linspace(0, 1, self.options.depths).tolist()):
            row = {**shared, "length": length, "depth": depth}
            yield run.Cell(row, tests, length, f"{length:,} tokens at {depth:.0%}")

    def measure(self, cell: run.Cell) -> Row:
        """Test one cell, a length and depth."""

        def sample_case(index: int) -> cases.TextCase:
            return cases.finish(self.draft(index, cell.row["depth"]), self.writer, cell.tokens, BUDGET)

        outcome = self.ask(cell, sample_case, budget=BUDGET, judge=partial(answers.score_answer, read=self.read))
        return answers.summarize(outcome)

    def title(self) -> str:
        return f"{super().title()}; {self.protocol} protocol, {self.options.tests} tests a cell"

    def text(self, rows: Sequence[Row]) -> str:
        grid = 100 * pivot(rows, "depth", "length").rename(index="{:.0%}".format, columns="{:,}".format)
        return f"retrieval accuracy (%)\n{to_text(grid, '.0f')}"


main = Passkey.main

if __name__ == "__main__":
    start(main)
