"""Question answering: a question, the documents that answer it, and as many others as fit, in a shuffled order.

RULER takes a question of SQuAD (qa_1) or HotpotQA (qa_2); other paragraphs of the question's own article or context
come before those of other questions. Documents are never cut, so that prompts may be shorter than the length.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/qa.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval.engine.cases import Draft, Turn, Writer
from eval.ruler import wording
from eval.ruler.sources import Sources


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Parameters of the two question answering tasks."""

    source: Literal["squad", "hotpotqa"]

    def draft(self, writer: Writer, sources: Sources, turn: Turn) -> Draft:
        """Take a question and draw the order of the documents."""
        questions = sources.squad if self.source == "squad" else sources.hotpotqa
        asked = questions.ask(turn.seed, turn.index, turn.rng)
        order = int(turn.rng.integers(2**62))

        def places(n: int) -> list[int]:
            return [int(k) for k in np.argsort(np.random.default_rng(order).random(n))]

        def prompt(n: int) -> str:
            texts = [asked.document(k) for k in places(n)]
            shown = [wording.DOCUMENT.format(number=k, text=text) for k, text in enumerate(texts, start=1)]
            return wording.QUESTION.format(context="\n\n".join(shown), query=asked.question)

        return Draft(
            compose=prompt,
            least=asked.gold,
            answers=asked.answers,
            facts=lambda n: {
                "question": asked.question,
                "documents": n,
                "gold": sorted(places(n).index(k) + 1 for k in range(asked.gold)),
            },
            most=asked.most,
            exhausted=asked.exhausted,
        )
