"""Evidence that is computed once for whole documents, and stored beside the shards (lab.data.beside).

asked: what each word of a generated corpus was made to copy. The generator of lab.data.synthetic knows the origin of
every word: a word of filler when it is drawn, a number when it is stated. A repeated phrase, a quote or an answer
copies words, and in lab.data.mqar the value of a key. The evidence of a token of such a word is the same token in the
latest earlier word of that origin, in the same section. Equal words that were drawn apart are no evidence of each
other. These labels judge lab.evidence.repeat and lab.evidence.suffix, which see the tokens alone.

gain: what a reference model needs, the least context that predicts a target as well as the whole one.

    d(t) = min of c with loss(t, c) <= loss(t, whole) + TOLERANCE,   in nats

loss(t, c) is that of the target after the last c tokens before it. The whole context is the target's piece of its
document, data.window tokens at most. c is FIRST, 2 FIRST, 4 FIRST and so on below the window, and then the whole. The
farthest token of that context counts as the evidence, which lies d = c back at most. Where FIRST tokens suffice, there
is no evidence beyond them: d = 0. The passes of eval.demand --score step by a quarter of c, so that a target has more
than 3/4 c tokens, and c at most.

Source of gain: short against whole contexts, arXiv:2410.23771, section 3. The least context is from arXiv:2512.08082:
there the shortest one whose greedy token is right by a margin of 0.2 in probability. Ours compares losses, so that
targets that the model never gets right count too.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Literal

from lab.errors import ConfigError
from lab.evidence.base import Evidence, IntArray, Sequences

FIRST = 4  # tokens
TOLERANCE = 0.1  # nats


class Stored(Evidence, ABC):
    """A method whose distances are stored for training tokens alone."""

    def nearest(self, laid: Sequences) -> IntArray:
        """Find nothing.

        Raises: ConfigError.
        """
        rule = "is stored for training tokens alone, and these are others"
        raise ConfigError(f"evidence.method={self.method}: {rule}; use repeat or suffix")


@dataclass(frozen=True, kw_only=True)
class Asked(Stored):
    """The word that a generated corpus copied."""

    method: Literal["asked"] = "asked"


@dataclass(frozen=True, kw_only=True)
class Gain(Stored):
    """The least context at which a reference model's loss is within 0.1 nats of that with the whole context."""

    method: Literal["gain"] = "gain"
