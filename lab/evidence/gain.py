"""Evidence by what a reference model needs: the least context that predicts a target as well as the whole one.

    d(t) = min of c with loss(t, c) <= loss(t, whole) + TOLERANCE,   in nats

loss(t, c) is that of the target after the last c tokens before it. The whole context is the target's piece of its
document, data.window tokens at most. c is FIRST, 2 FIRST, 4 FIRST and so on below the window, and then the whole. The
farthest token of that context counts as the evidence, which lies d = c back at most. Where FIRST tokens suffice, there
is no evidence beyond them: d = 0.

eval.demand --score stores d beside the shards. Its passes step by a quarter of c, so that a target has more than 3/4 c
tokens, and c at most.

Source: short against whole contexts, arXiv:2410.23771, section 3. The least context is from arXiv:2512.08082: there the
shortest one whose greedy token is right by a margin of 0.2 in probability. Ours compares losses, so that targets that
the model never gets right count too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.evidence.base import Stored

FIRST = 4  # tokens
TOLERANCE = 0.1  # nats


@dataclass(frozen=True, kw_only=True)
class Gain(Stored):
    """The least context at which a reference model's loss is within 0.1 nats of that with the whole context."""

    method: Literal["gain"] = "gain"
