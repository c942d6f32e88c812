"""Question answering: a question, the documents that answer it, and as many others as fit, in a shuffled order.

RULER takes a question of SQuAD (qa_1) or HotpotQA (qa_2); other paragraphs of the question's own article or context
come before those of other questions. Documents are never cut, so that prompts may be shorter than the length.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/qa.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.cases import Distinct, Draft, Turn, draw_made_up, english
from lab.errors import ConfigError, DataError

# The wording is verbatim from NVIDIA/RULER, scripts/data/synthetic/constants.py (Apache 2.0).
DOCUMENT = "Document {number}:\n{text}"
QUESTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me "
    "the answer and do not output any other words.\n\nQuestion: {query} Answer:"
)

Entry = Mapping[str, Any]  # question, answers, and the places of its gold and near documents


@dataclass(frozen=True)
class QuestionFile:
    """Questions of a file, asked in a shuffled order; near documents come before those of other questions."""

    entries: Sequence[Entry]
    documents: Sequence[str]
    field: str

    def draft(self, turn: Turn) -> Draft:
        """Take the turn's question of the order that the seed gives.

        Raises: ConfigError for more tests than there are questions.
        """
        if turn.index >= len(self.entries):
            raise ConfigError(f"{self.field}: has {len(self.entries)} questions; lower --tests to that")
        entry = self.entries[np.random.default_rng(turn.seed).permutation(len(self.entries))[turn.index]]
        gold, near, rng = entry["gold"], entry["near"], turn.rng
        far = [k for k in rng.permutation(len(self.documents)).tolist() if k not in {*gold, *near}]
        order = [*gold, *(near[k] for k in rng.permutation(len(near))), *far]
        have = f"{len(order):,} documents are too short a haystack for length={{length}}; give a larger file"
        texts = Texts(lambda k: self.documents[order[k]], len(gold), len(order), f"{self.field}: {have}")
        return asked(entry["question"], entry["answers"], texts, rng)


@dataclass(frozen=True)
class MadeUpPeople:
    """Endless questions about fictional people; with `hops` 2 the answer is in a friend's document."""

    hops: int

    def draft(self, turn: Turn) -> Draft:
        """Invent people and ask for the birthplace of the first, or of the first one's oldest friend."""
        rng = turn.rng
        names = Distinct(lambda: f"{draw_made_up(rng)[:4].title()} {draw_made_up(rng).title()}")
        towns = Distinct(lambda: draw_made_up(rng).title())
        texts: list[str] = []

        def document(k: int) -> str:
            while len(texts) <= k:
                texts.append(describe(names.first(len(texts) + 2)[-2:], towns.first(len(texts) + 1)[-1], rng))
            return texts[k]

        person, home = names.first(1)[0], towns.first(self.hops)[-1]
        who = person if self.hops == 1 else f"the oldest friend of {person}"
        return asked(f"In which town was {who} born?", (home,), Texts(document, self.hops), rng)


Questions = QuestionFile | MadeUpPeople


@dataclass(frozen=True)
class Texts:
    """Documents, of which the first `gold` hold the answer; `most` is their number where it is limited."""

    document: Callable[[int], str]
    gold: int
    most: int | None = None
    exhausted: str = ""


def asked(question: str, answers: tuple[str, ...], texts: Texts, rng: np.random.Generator) -> Draft:
    """Draw the order of the documents, and ask."""
    order = int(rng.integers(2**62))

    def places(n: int) -> list[int]:
        return [int(k) for k in np.argsort(np.random.default_rng(order).random(n))]

    def prompt(n: int) -> str:
        shown = [DOCUMENT.format(number=k, text=texts.document(at)) for k, at in enumerate(places(n), start=1)]
        return QUESTION.format(context="\n\n".join(shown), query=question)

    return Draft(
        compose=prompt,
        least=texts.gold,
        answers=answers,
        facts=lambda n: {
            "question": question,
            "documents": n,
            "gold": sorted(places(n).index(k) + 1 for k in range(texts.gold)),
        },
        most=texts.most,
        exhausted=texts.exhausted,
    )


def describe(people: Sequence[str], town: str, rng: np.random.Generator) -> str:
    """Write about a person, the first of two; the second is the oldest friend."""
    pools = english()
    (a, b), (n, m) = rng.choice(pools["adjectives"], 2, replace=False), rng.choice(pools["nouns"], 2, replace=False)
    return (
        f"{people[0]} was born in {town} and grew up beside the {a} {n}. "
        f"The oldest friend of {people[0]} is {people[1]}. Both of them collect everything about the {b} {m}."
    )


def read_questions(
    path: Path, field: str, kind: str, read: Callable[[Any, Callable[[str], int]], list[Entry]]
) -> QuestionFile:
    """Read a file of questions.

    Raises: DataError for a file that is missing, of another form, or without questions.
    """
    documents: dict[str, int] = {}
    try:
        entries = read(
            json.loads(path.read_text(encoding="utf-8")), lambda text: documents.setdefault(text, len(documents))
        )
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DataError(f"{field}={path}: {reason}; give {kind}'s JSON file") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{field}={path}: is not of {kind}'s form ({error!r}); give {kind}'s JSON file") from error
    if not entries:
        raise DataError(f"{field}={path}: holds no question with an answer; give {kind}'s JSON file")
    return QuestionFile(entries, list(documents), f"{field}={path}")


def squad_entries(content: Mapping[str, Any], number: Callable[[str], int]) -> list[Entry]:
    """Parse SQuAD 2.0: a question's paragraph is gold, the article's others are near; unanswerable ones go."""
    entries: list[Entry] = []
    for article in content["data"]:
        own = [number(paragraph["context"]) for paragraph in article["paragraphs"]]
        for gold, paragraph in zip(own, article["paragraphs"], strict=True):
            near = tuple(dict.fromkeys(other for other in own if other != gold))
            for item in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in item["answers"]))
                if answers and not item.get("is_impossible", False):
                    entries.append({"question": item["question"], "answers": answers, "gold": (gold,), "near": near})
    return entries


def hotpotqa_entries(content: Sequence[Mapping[str, Any]], number: Callable[[str], int]) -> list[Entry]:
    """Parse HotpotQA: paragraphs with supporting facts are gold, the question's others are near."""
    entries: list[Entry] = []
    for item in content:
        own = {title: number(f"{title}\n{''.join(sentences)}") for title, sentences in item["context"]}
        supporting = {title for title, _ in item.get("supporting_facts", [])} & own.keys() or own.keys()
        gold = tuple(own[title] for title in own if title in supporting)
        near = tuple(own[title] for title in own if title not in supporting)
        entries.append({"question": item["question"], "answers": (item["answer"],), "gold": gold, "near": near})
    return entries
