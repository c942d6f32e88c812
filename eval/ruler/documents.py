"""Questions with documents that answer them: SQuAD, HotpotQA, or made-up people as a stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.cases import Distinct, draw_made_up, english
from lab.errors import ConfigError, DataError


@dataclass(frozen=True)
class Question:
    """One question; the first `gold` documents answer it, and `most` is their number, if it is limited."""

    question: str
    answers: tuple[str, ...]
    document: Callable[[int], str]
    gold: int
    most: int | None
    exhausted: str = ""


@dataclass(frozen=True)
class Entry:
    """One question of a file; `gold` and `near` are indices of documents."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...]


@dataclass(frozen=True)
class QuestionFile:
    """Questions of a file, asked in a shuffled order; near documents come before those of other questions."""

    entries: Sequence[Entry]
    documents: Sequence[str]
    field: str

    def ask(self, seed: int, index: int, rng: np.random.Generator) -> Question:
        """Take question `index` of the order that the seed gives.

        Raises: ConfigError for more tests than there are questions.
        """
        if index >= len(self.entries):
            raise ConfigError(f"{self.field}: has {len(self.entries)} questions; lower --tests to that")
        entry = self.entries[np.random.default_rng(seed).permutation(len(self.entries))[index]]
        close = {*entry.gold, *entry.near}
        far = [k for k in rng.permutation(len(self.documents)).tolist() if k not in close]
        order = [*entry.gold, *(entry.near[k] for k in rng.permutation(len(entry.near))), *far]
        have = (
            f"{self.field}: {len(order):,} documents are too short a haystack for length={{length}}; give a larger file"
        )
        return Question(
            entry.question, entry.answers, lambda k: self.documents[order[k]], len(entry.gold), len(order), have
        )


@dataclass(frozen=True)
class MadeUpPeople:
    """Endless questions about fictional people; with `hops` 2 the answer is in a friend's document."""

    hops: int

    def ask(self, seed: int, index: int, rng: np.random.Generator) -> Question:
        """Invent people and ask for the birthplace of the first, or of the first one's oldest friend."""
        names = Distinct(partial(made_up_name, rng))
        towns = Distinct(partial(made_up_town, rng))
        texts: list[str] = []

        def document(k: int) -> str:
            while len(texts) <= k:
                texts.append(describe(names.first(len(texts) + 2)[-2:], towns.first(len(texts) + 1)[-1], rng))
            return texts[k]

        person, home = names.first(1)[0], towns.first(self.hops)[-1]
        who = person if self.hops == 1 else f"the oldest friend of {person}"
        return Question(f"In which town was {who} born?", (home,), document, self.hops, None)


Questions = QuestionFile | MadeUpPeople


def made_up_name(rng: np.random.Generator) -> str:
    """Draw a first and a last name."""
    return f"{draw_made_up(rng)[:4].title()} {draw_made_up(rng).title()}"


def made_up_town(rng: np.random.Generator) -> str:
    """Draw a town."""
    return draw_made_up(rng).title()


def describe(people: Sequence[str], town: str, rng: np.random.Generator) -> str:
    """Write about a person, the first of two; the second is the oldest friend."""
    pools = english()
    (a, b), (n, m) = rng.choice(pools["adjectives"], 2, replace=False), rng.choice(pools["nouns"], 2, replace=False)
    return (
        f"{people[0]} was born in {town} and grew up beside the {a} {n}. "
        f"The oldest friend of {people[0]} is {people[1]}. Both of them collect everything about the {b} {m}."
    )


def read_squad(place: str | None) -> Questions:
    """Read SQuAD 2.0 (dev-v2.0.json); questions without an answer are left out.

    Raises: DataError.
    """
    if place is None:
        return MadeUpPeople(hops=1)
    return read_questions(Path(place), "--squad", "SQuAD", squad_entries)


def read_hotpotqa(place: str | None) -> Questions:
    """Read HotpotQA (hotpot_dev_distractor_v1.json).

    Raises: DataError.
    """
    if place is None:
        return MadeUpPeople(hops=2)
    return read_questions(Path(place), "--hotpotqa", "HotpotQA", hotpotqa_entries)


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
    """Parse SQuAD: a question's paragraph is gold, the article's other paragraphs are near."""
    entries = []
    for article in content["data"]:
        own = [number(paragraph["context"]) for paragraph in article["paragraphs"]]
        for gold, paragraph in zip(own, article["paragraphs"], strict=True):
            near = tuple(dict.fromkeys(other for other in own if other != gold))
            for item in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in item["answers"]))
                if answers and not item.get("is_impossible", False):
                    entries.append(Entry(item["question"], answers, (gold,), near))
    return entries


def hotpotqa_entries(content: Sequence[Mapping[str, Any]], number: Callable[[str], int]) -> list[Entry]:
    """Parse HotpotQA: paragraphs with supporting facts are gold, the question's others are near."""
    entries = []
    for item in content:
        own = {title: number(f"{title}\n{''.join(sentences)}") for title, sentences in item["context"]}
        supporting = {title for title, _ in item.get("supporting_facts", [])} & own.keys() or own.keys()
        gold = tuple(own[title] for title in own if title in supporting)
        near = tuple(own[title] for title in own if title not in supporting)
        entries.append(Entry(item["question"], (item["answer"],), gold, near))
    return entries
