"""The results of an analysis of impactful tokens by label, as rows of impact.json and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.engine.table import to_text
from eval.impact.impactful import BoolArray, FloatArray, IntArray, Tally
from eval.impact.token_classes import CLASSES, vocabulary_classes

SHOWN = 12  # rows of the printed table
MANY = 0.9  # of all sentences; a selection that holds more removes little
FORMS = {
    "occurrences": ",",
    "marked": ",",
    **dict.fromkeys(("of marked", "of all", "rate"), ".1%"),
    "mean change": ".3f",
}


@dataclass(frozen=True, eq=False)
class Labels:
    """The label of every token id, -1 where it has none, and the labels' names.

    Shapes: `of_token` int64 (vocab_size,).
    """

    of_token: IntArray
    names: list[str]

    @classmethod
    def by_token(cls, texts: Sequence[str | None]) -> Labels:
        """Label every token by its own text."""
        return cls(np.arange(len(texts)), [repr(text or "") for text in texts])

    @classmethod
    def by_class(cls, texts: Sequence[str | None]) -> Labels:
        """Label tokens by their classes."""
        return cls(np.array([CLASSES.index(name) for name in vocabulary_classes(texts)]), list(CLASSES))

    @classmethod
    def by_tag(cls, tags: dict[int, str], n_ids: int) -> Labels:
        """Label the tokens that were tagged.

        Example:
            >>> labels = Labels.by_tag({3: "NUM", 0: "ADP"}, 5)
            >>> labels.of_token.tolist(), labels.names
            ([0, -1, -1, 1, -1], ['ADP', 'NUM'])
        """
        names = sorted(set(tags.values()))
        of_token = np.full(n_ids, -1)
        of_token[list(tags)] = [names.index(label) for label in tags.values()]
        return cls(of_token, names)

    def tally(self, targets: IntArray, changes: FloatArray, marked: BoolArray) -> Tally:
        """Count targets by label.

        Shapes: (n_targets,), all.
        """
        return Tally.of(self.of_token[targets], changes, marked, len(self.names))


def rows_of(tally: Tally, labels: Labels, chosen: Sequence[int] | None) -> list[dict[str, Any]]:
    """Describe the labels that occur, in falling order of their rate; `chosen` where types were taken among them."""
    order = [int(label) for label in np.lexsort((-tally.marked, -tally.rate)) if tally.occurrences[label]]
    return [
        {
            "label": labels.names[label],
            "occurrences": int(tally.occurrences[label]),
            "marked": int(tally.marked[label]),
            "share_of_marked": float(tally.marked[label] / tally.marked.sum()),
            "share_of_all": float(tally.occurrences[label] / tally.occurrences.sum()),
            "rate": float(tally.rate[label]),
            "mean_change": float(tally.change[label] / tally.occurrences[label]),
            **({} if chosen is None else {"chosen": label in chosen}),
        }
        for label in order
    ]


def summary(result: dict[str, Any]) -> str:
    """Format the classes and the first types as tables; a star marks types that were taken."""
    by, types = result["options"]["by"], result["types"]
    lines = [] if by == "class" else [table("class", result["classes"]), ""]
    lines += [table(by, types[:SHOWN]), ""]
    if len(types) > SHOWN:
        lines[-1:] = [f"... and {len(types) - SHOWN:,} more", ""]
    n_chosen = sum(row["chosen"] for row in types)
    lines.append(
        f"{n_chosen:,} taken (*), {len(result['token_ids']):,} token ids: {result['held_of_marked']:.0%} of the marked "
        f"targets, in {result['held_of_sentences']:.0%} of the sentences"
        + "; with a lower --coverage a selection removes more of them"
        * (result["held_of_sentences"] > MANY)
    )
    return "\n".join(lines)


def table(title: str, rows: Iterable[dict[str, Any]]) -> str:
    """Format labels, a line each."""
    columns = {"occurrences": "occurrences", "marked": "marked", "share_of_marked": "of marked"}
    columns |= {"share_of_all": "of all", "rate": "rate", "mean_change": "mean change"}
    shown = [
        {title: row["label"] + " *" * row.get("chosen", False)} | {columns[name]: row[name] for name in columns}
        for row in rows
    ]
    return to_text(shown, FORMS)
