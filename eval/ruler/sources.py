"""The tasks' sources of text: local files, or stand-ins, which the results name; and the two tasks on documents.

Haystacks are RULER's noise line repeated, essays from files, or made-up sentences. Questions need their file.

Question answering has a question, the documents that answer it, and all others that fit, in a shuffled order. RULER
takes a question of SQuAD (qa_1) or HotpotQA (qa_2). Other paragraphs of the question's own article or context come
before those of other questions. Documents are never cut, so that prompts may be shorter than the length.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/qa.py.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.engine.cases import Draft, Writer
from eval.engine.random_words import english
from lab.core.errors import ConfigError, DataError, MissingPackage
from lab.core.types import Row
from lab.data.text_files import read_texts

STANDIN = "standin"
SENTENCE_END = re.compile(r"(?<=[.!?]) ")
FORMS = (
    "The {a} {n} and the {b} {m} {v} the {o}.",
    "Some {a} people {v} when the {n} becomes {b}, and others {w}.",
    "Whoever wants to {v} needs one {a} {n}, one {m} and many {b} {o}s.",
    "On {a} days they {v} beside the {b} {n}; later they {w} the {m}.",
)
SLOTS = {"a": "adjectives", "b": "adjectives", "n": "nouns", "m": "nouns", "o": "nouns", "v": "verbs", "w": "verbs"}

# The wording is verbatim from NVIDIA/RULER, scripts/data/synthetic/constants.py (Apache 2.0).
DOCUMENT = "Document {number}:\n{text}"
QUESTION = (
    "\x02Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words.\n\nThe following are given documents.\n\n{context}\n\nAnswer the question based on the given documents. "
    "Only give me the answer and do not output any other words.\n\nQuestion: {query}\x03 Answer:"
)

Text = Callable[[int], str]
Sources = Mapping[str, Any]  # by the names of READERS; None for the lab's own
Entry = Mapping[str, Any]  # question, answers, and the places of its gold and near documents


def read_sources(**files: str | None) -> Sources:
    """Read the files by the names of READERS, and reject broken ones; stand-ins take the place of the others."""
    read = {name: READERS[name](file) for name, file in files.items() if file}
    return dict.fromkeys(READERS) | read


def name_source(source: Any) -> str:
    """Name a source by the SHA-256 of its content, 16 hex digits, or as a stand-in."""
    if source is None:
        return STANDIN
    if isinstance(source, Questions):
        source = json.dumps([source.documents, source.entries])
    elif isinstance(source, tuple):
        source = "\n".join(source)
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_essays(path: str) -> str:
    """Read a text file. Reject one without text."""
    return " ".join(" ".join(read_texts(Path(path), "--haystack")).split())


def read_words(_: str) -> tuple[str, ...]:
    """Read all nouns, adjectives and verbs of wonderwords, which RULER draws from."""
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise MissingPackage("wonderwords", "--words=wonderwords", "ruler") from error
    return tuple(sorted(set(RandomWord().filter())))


def running_text(essays: str | None, rng: np.random.Generator) -> tuple[Text, int | None]:
    """Return text by its number of words, and how many there are; without essays, made-up sentences without end."""
    if essays is not None:
        whole = essays.split(" ")
        return lambda n: " ".join(whole[:n]), len(whole)
    pools = english()
    text: list[str] = []

    def first(n: int) -> str:
        while len(text) < n:
            form = FORMS[rng.integers(len(FORMS))]
            slots = {}
            # Every slot takes a number from the generator, used or not: the text depends on their order.
            for slot, word_class in SLOTS.items():
                pool = pools[word_class]
                slots[slot] = pool[rng.integers(len(pool))]
            text.extend(form.format_map(slots).split(" "))
        return " ".join(text[:n])

    return first, None


def insert(pieces: Sequence[str], needles: Sequence[str], places: Sequence[int]) -> list[str]:
    """Put each needle before the piece with its place; `places` do not fall.

    Example:
        >>> insert(["a", "b", "c", "d"], ["X", "Y"], [2, 4])
        ['a', 'b', 'X', 'c', 'd', 'Y']
    """
    out = list(pieces)
    # From the last to the first: an insertion moves no piece before an earlier place.
    for needle, place in reversed(list(zip(needles, places, strict=True))):
        out.insert(place, needle)
    return out


class Turn(NamedTuple):
    """The index of a test, what it is made of, and its maximum length.

    Units: `length` and `budget`, of the answer, in tokens.
    """

    writer: Writer
    sources: Sources
    length: int
    budget: int
    seed: int
    test: int
    rng: np.random.Generator

    @property
    def room(self) -> int:
        """Tokens for all but the answer."""
        return self.length - self.budget


class Questions(NamedTuple):
    """Questions of a file and all of its documents; `field` is the option and the path of the file."""

    entries: Sequence[Entry]
    documents: Sequence[str]
    field: str


def questions(turn: Turn, *, file: str) -> Draft:
    """Take the turn's question of a file in the order that the seed gives. Reject more tests than questions.

    Near documents come before those of other questions.
    """
    entries, documents, field = turn.sources[file]
    if turn.test >= len(entries):
        raise ConfigError(f"{field}: has {len(entries)} questions; lower --tests to that")
    # One order for all tests of a seed, so that no question is asked two times.
    entry = entries[np.random.default_rng(turn.seed).permutation(len(entries))[turn.test]]
    gold, near = entry["gold"], entry["near"]
    others = [k for k in turn.rng.permutation(len(documents)).tolist() if k not in {*gold, *near}]
    order = [*gold, *[near[k] for k in turn.rng.permutation(len(near))], *others]
    document_order = int(turn.rng.integers(2**62))

    def prompt(n: int) -> str:
        places = enumerate(shuffled(range(n), document_order), start=1)
        texts = [DOCUMENT.format(number=number, text=documents[order[k]]) for number, k in places]
        return QUESTION.format(context="\n\n".join(texts), query=entry["question"])

    have = f"{field}: {len(order):,} documents are too short a haystack for length={{length}}; give a larger file"
    return Draft(compose=prompt, least=len(gold), answers=entry["answers"], most=len(order), exhausted=have)


def shuffled(entries: Any, order: int) -> list[Any]:
    """Shuffle entries. A longer list with the same `order` keeps the order of the entries that both have.

    Each entry gets its random key in turn, so that more entries change no earlier key; a permutation would.
    """
    keys = np.random.default_rng(order).random(len(entries))
    return [entries[k] for k in np.argsort(keys)]


def read_questions(option: str, kind: str, parse: Callable[..., list[Entry]], path: str) -> Questions:
    """Read a file of questions. Reject one that is missing, has another form, or has no questions."""
    documents: dict[str, int] = {}
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        # Equal documents get one number, as files repeat paragraphs.
        entries = parse(content, lambda text: documents.setdefault(text, len(documents)))
        if not entries:
            raise ValueError("no question with an answer")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{option}={path}: is not of {kind}'s form ({error!r}); give {kind}'s JSON file") from error
    return Questions(entries, list(documents), f"{option}={path}")


def parse_squad(content: Row, number: Callable[[str], int]) -> list[Entry]:
    """Parse SQuAD 2.0: a question's paragraph is gold, the article's others are near; unanswerable ones go."""
    entries: list[Entry] = []
    for article in content["data"]:
        documents = [number(paragraph["context"]) for paragraph in article["paragraphs"]]
        for gold, paragraph in zip(documents, article["paragraphs"], strict=True):
            near = tuple(dict.fromkeys(other for other in documents if other != gold))
            for item in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in item["answers"]))
                if answers and not item.get("is_impossible", False):
                    entries.append({"question": item["question"], "answers": answers, "gold": (gold,), "near": near})
    return entries


def parse_hotpotqa(content: Sequence[Row], number: Callable[[str], int]) -> list[Entry]:
    """Parse HotpotQA: paragraphs with supporting facts are gold, the question's others are near."""
    entries: list[Entry] = []
    for item in content:
        titles = dict(item["context"]).keys()
        # A question without supporting facts, as in the test split, has all of its paragraphs as gold.
        supporting = {title for title, _ in item.get("supporting_facts", [])} & titles or titles
        gold: dict[str, int] = {}
        near: dict[str, int] = {}
        for title, sentences in item["context"]:
            group = gold if title in supporting else near
            group[title] = number(f"{title}\n{''.join(sentences)}")
        parts = {"gold": tuple(gold.values()), "near": tuple(near.values())}
        entries.append({"question": item["question"], "answers": (item["answer"],), **parts})
    return entries


READERS: dict[str, Callable[[str], Any]] = {
    "essays": read_essays,
    "squad": partial(read_questions, "--squad", "SQuAD", parse_squad),
    "hotpotqa": partial(read_questions, "--hotpotqa", "HotpotQA", parse_hotpotqa),
    "words": read_words,
}
