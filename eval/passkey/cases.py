"""The passkey test: one number hidden at a chosen depth of a filler, asked for at the end.

Two protocols. `passkey` is the test that the field compares by (Mohtashami, Jaggi 2023, as appendix A.1 of
arXiv:2402.17463 uses it): five lines, of which the second and fourth are the same five sentences of
filler again and again, cut at any letter,

    task / filler / The pass key is 71432. Remember it. 71432 is the pass key. / filler / What is the pass key? ...

`lab` asks in the words that the lab's own small models are trained on: one needle of the four-needle test in filler of
the run's corpus, cut between words, with as many digits as the corpus has. A depth d puts d of the filler before the
number. Differences from the released scripts: the key has exactly its number of digits (theirs is drawn from 1 to
50,000); the prompt and the tokens left for the answer fill the length in the model's own tokens, as exactly as a letter
or word more of filler allows, and never exceed it (theirs counts letters); the first number of the answer must be the
key (theirs compares the first tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval.engine.answers import draw_key
from eval.engine.cases import Draft, TextCase, Turn, Writer, finish
from eval.engine.words import NOISE
from lab.data import wording
from lab.probe.needles import next_word

Protocol = Literal["passkey", "lab"]

DIGITS = 5
TASK = wording.TASK.rstrip("\n")
KEY = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"


@dataclass(frozen=True)
class Passkey:
    """How tests are written: a protocol, the digits of the key, and the filler of the lab's protocol."""

    protocol: Protocol
    digits: int = DIGITS
    filler: str = ""

    def case(self, writer: Writer, *, length: int, budget: int, depth: float, seed: int, index: int) -> TextCase:
        """Draw test `index`: at most `length` tokens together with the `budget` for the answer.

        The key and the filler's beginning are a function of seed and index, the same at every length and depth.
        The length must have room for the fixed parts.
        """
        draft = self.draft(depth, np.random.default_rng([seed, index]))
        return finish(draft, writer, Turn(length, budget, seed, index, np.random.default_rng(0)))

    def least(self, writer: Writer, seed: int, index: int) -> int:
        """Count the tokens of a test's prompt without filler."""
        return writer.count(self.draft(0.0, np.random.default_rng([seed, index])).compose(0))

    def draft(self, depth: float, rng: np.random.Generator) -> Draft:
        """Draw all that does not depend on the length."""
        key = draw_key(rng, self.digits)
        compose = self.garbage(key, depth) if self.protocol == "passkey" else self.words(key, depth, rng)
        return Draft(compose, 0, (key,), lambda units: {"depth": depth, "filler_units": units})

    def garbage(self, key: str, depth: float) -> Callable[[int], str]:
        """Write the prompt of the passkey protocol by the letters of filler."""

        def compose(letters: int) -> str:
            before = round(depth * letters)
            endless = f"{NOISE} " * (1 + letters // len(NOISE))
            lines = [TASK, endless[:before], KEY.format(key=key), endless[: letters - before], QUESTION]
            return "\n".join(lines)

        return compose

    def words(self, key: str, depth: float, rng: np.random.Generator) -> Callable[[int], str]:
        """Write the prompt of the lab's protocol by the words of filler; after its end it begins again."""
        start = next_word(self.filler, int(rng.integers(len(self.filler))))
        words = f"{self.filler[start:]} {self.filler[:start]}".split()

        def compose(count: int) -> str:
            text = [words[place % len(words)] for place in range(count)]
            before = round(depth * count)
            needle = wording.NEEDLE.format(number=key)
            hay = " ".join(text[:before]) + (needle if before else needle.lstrip())
            rest = " ".join(text[before:])
            ending = wording.QUESTION + wording.ANSWER_PREFIX
            return wording.TASK + hay + (f" {rest}" if rest else "") + ending

        return compose
