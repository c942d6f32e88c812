"""Multi-query associative recall (MQAR): pairs of a key and a value, then each key again, whose value must be recalled.

A document is n = `pairs` pairs and then S = `tokens` / 2 - n slots, of two words each. Keys are drawn from the first
half of the words and values from the second, all different. Every key is asked for in one slot, and its value follows:

    words    k1 v1 k2 v2 | k2 v2 . . k1 v1        n = 2, S = 3, "." is filler
    evidence 0  0  0  0  | 0  2  0 0 0  8         the value of pair i, asked for in slot s, is 2 (n - i + s) words back

with i = 1 .. n and s = 1 .. S. Slots are drawn for one key after the other, without replacement, by the law of gaps

    P(s) = s^(a - 1) / sum over t = 1 .. S of t^(a - 1),    a = `power_a`

a = 1 is uniform. In natural text the gaps between repeated bigrams follow a power law. A word with its space is one
token where the vocabulary has room for all words; in any case labels count tokens.

Source: arXiv:2312.04927, section 3.2 and the released code, zoology/data/multiquery_ar.py, whose defaults these are but
for the number of words (8,192 there). There a label takes the place of a value in a slot; here it is text, as the next
token is what all models here are trained on. Filler is random there too; here it has no key and no value of its
document, so that each question has one answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from lab.data.synthetic import Generated, Piece, lexicon
from lab.schema import Positive, Section, Seed


@dataclass(frozen=True, kw_only=True)
class Mqar(Section, Generated):
    """Multi-query associative recall: keys with values, then each key again, by a power law of gaps."""

    name: Literal["mqar"] = "mqar"
    documents: Annotated[int, Ge(1), Le(10**9)] = 20_000
    """Number of documents."""
    words: Annotated[int, Ge(4), Le(10_000)] = 64
    """Distinct words, half of them keys and half values."""
    pairs: Positive = 8
    """Pairs of a document."""
    tokens: Annotated[int, Ge(4), Le(2**24)] = 64
    """Words of a document, each a token."""
    power_a: Annotated[float, Gt(0), Le(10)] = 0.01
    """Exponent a of the law of gaps, s^(a - 1) in slots; 1 is uniform, less prefers near questions."""
    seed: Seed = 0
    """Seed of the documents; the run's own seed shuffles them."""

    def rules(self) -> Iterator[str]:
        """Require room for every pair and its question, and words that are left for filler."""
        if self.tokens < 4 * self.pairs or self.tokens % 2:
            rule = f"must be even and >= {4 * self.pairs}, twice two for each of pairs={self.pairs}; change it"
            yield self.fault("tokens", rule)
        if self.words // 2 <= self.pairs:
            yield self.fault("words", f"must be >= {2 * self.pairs + 2}, or none is left for filler; raise it")

    def pieces(self, index: int) -> Iterator[Piece]:
        """Generate document `index` word by word; a value's origin is its pair."""
        rng = np.random.default_rng([self.seed, index])
        n, half = self.pairs, self.words // 2
        slots = self.tokens // 2 - n
        keys, values = rng.permutation(half), half + rng.permutation(half)
        law = np.arange(1.0, slots + 1) ** (self.power_a - 1)
        asked = n + rng.choice(slots, n, replace=False, p=law / law.sum())
        filler = rng.choice(np.append(keys[n:], values[n:]), (slots, 2))
        rows = np.concatenate([np.column_stack([keys[:n], values[:n]]), filler])
        rows[asked] = rows[:n]
        pair_of = dict(zip([*range(n), *asked.tolist()], [*range(n), *range(n)]))
        for row, (first, second) in enumerate(lexicon(self.words)[rows].tolist()):
            yield f" {first}", None
            yield f" {second}", pair_of.get(row)
