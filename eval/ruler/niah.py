"""Retrieval: needles in a haystack, values by key.

A needle states the value of a key. `keys` keys have `values` values each; `queries` of the keys are asked for, and all
their values are the answer. The haystack is the noise line again and again, essays, or more needles with other keys.

A haystack of noise or needles has whole lines, and the needle is before any of them with equal probability. Essays are
cut after a word, and needles are between their sentences, at `depths` drawn without repetition from DEPTHS evenly
spaced ones.

Source: Hsieh et al. 2024, section 3 and appendix B; NVIDIA/RULER, scripts/data/synthetic/niah.py and synthetic.yaml,
commit c3f5e3b. Ours are the search for the longest haystack, the order of the needles, new in every test, and sentences
that end at a full stop, question or exclamation mark before a blank, where RULER uses nltk.

As in lm-eval, no prompt of a task ends with a space, as most tokenizers join a space to the word that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from eval.engine.cases import NOISE, Distinct, Draft, Turn, Writer, draw_number, draw_pair, draw_uuid
from eval.ruler.sources import SENTENCE_END, Essays, Sources, insert

# The wording is verbatim from NVIDIA/RULER, scripts/data/synthetic/constants.py and niah.py (Apache 2.0).
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NEEDLE_ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided text? "
    "The special magic {kind} for {query} mentioned in the provided text is"
)
NEEDLE_SEVERAL = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided "
    "text? The special magic {kind} for {query} mentioned in the provided text are"
)
DEPTHS = 40
KINDS = {"words": draw_pair, "numbers": draw_number, "uuids": draw_uuid}

Haystack = Literal["noise", "essays", "needles"]
Kind = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True, kw_only=True)
class Needles:
    """Parameters of the eight needle tasks."""

    haystack: Haystack
    key_kind: Kind = "words"
    value_kind: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    def draft(self, writer: Writer, sources: Sources, turn: Turn) -> Draft:
        """Draw keys, values, order, depths and questions."""
        rng = turn.rng
        keys = Distinct(partial(KINDS[self.key_kind], rng))
        values = Distinct(partial(KINDS[self.value_kind], rng))
        pairs = [(key, values.next()) for key in keys.first(self.keys) for _ in range(self.values)]
        planted = [pairs[k] for k in rng.permutation(len(pairs))]
        depths = np.sort(rng.choice(DEPTHS, len(pairs), replace=False) / (DEPTHS - 1)).tolist()
        if self.haystack != "essays":
            depths = np.sort(rng.random(len(pairs))).tolist()
        asked = [keys.words[k] for k in rng.choice(self.keys, self.queries, replace=False)]
        answers = tuple(value for query in asked for key, value in pairs if key == query)
        facts = {"keys": keys.words[: self.keys], "needles": planted, "depths": depths, "queries": asked}
        context, most = self.context(planted, depths, sources.essays, turn, (keys, values))
        return Draft(
            compose=lambda units: self.prompt(context(units), asked),
            least=1,
            answers=answers,
            facts=lambda units: facts | ({"distractors": units} if self.haystack == "needles" else {}),
            most=most,
            exhausted=sources.essays.exhausted,
        )

    def context(
        self,
        planted: list[tuple[str, str]],
        depths: list[float],
        essays: Essays,
        turn: Turn,
        more: tuple[Distinct, Distinct],
    ) -> tuple[Callable[[int], str], int | None]:
        """Return the haystack with its needles by the number of units (lines, words or needles), and the most units."""
        needles = [self.needle(key, value) for key, value in planted]

        def hide(pieces: list[str]) -> list[str]:
            return insert(pieces, needles, [int(depth * len(pieces)) for depth in depths])

        if self.haystack == "essays":
            text, most = essays.open(turn.rng)
            return lambda units: " ".join(hide(SENTENCE_END.split(text(units)))), most
        if self.haystack == "noise":
            return lambda units: "\n".join(hide([NOISE] * units)), None
        keys, values = more
        others: list[str] = []

        def among_needles(units: int) -> str:
            while len(others) < units:
                others.append(self.needle(keys.next(), values.next()))
            return "\n".join(hide(others[:units]))

        return among_needles, None

    def needle(self, key: str, value: str) -> str:
        """State a key's value."""
        return NEEDLE.format(kind=self.value_kind, key=key, value=value)

    def prompt(self, context: str, asked: list[str]) -> str:
        """Join task, haystack, question and the answer's start; a single value is asked for in the singular."""
        query = ", ".join(asked[:-1]) + ", and " + asked[-1] if len(asked) > 1 else asked[0]
        if self.queries * self.values == 1:
            return NEEDLE_ONE.format(kind=self.value_kind[:-1], context=context, query=query)
        return NEEDLE_SEVERAL.format(kind=self.value_kind, context=context, query=query)
