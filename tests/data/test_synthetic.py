import hashlib
import re

import pytest

from lab.data.config import Synthetic

ASKED = re.compile(r"What are the magic numbers mentioned in the provided text\? The numbers are [0-9, and]+\.")
DOCUMENT = """One of the magic numbers is 16. bilep 35 pemop fuluf bilep bilep 35 pemop fuluf bilep bilep 35.

What are the magic numbers mentioned in the provided text? The numbers are 16.

One of the magic numbers is 82. zegat libid fuluf 31. sukag 34 47 libid zegat libid fuluf.

What are the magic numbers mentioned in the provided text? The numbers are 82."""


@pytest.mark.parametrize(
    ("settings", "sha"),  # of the first 200, when median and section were 0.26 and 1 windows, at commit c95ff25
    [({}, "ab2510c342deb6c0"), ({"median_tokens": 99.84, "section_tokens": 384.0, "digits": 6}, "93799102984063df")],
    ids=["defaults_at_192", "at_384"],
)
def test_documents_are_those_of_earlier_versions(settings, sha):
    documents = "\n".join(map(Synthetic(**settings).document, range(200)))
    assert hashlib.sha256(documents.encode()).hexdigest()[:16] == sha


def test_only_the_last_section_asks_and_each_seed_has_documents_of_its_own():
    long = {"median_tokens": 600.0, "log_std": 0.1, "question_prob": 1.0, "section_tokens": 150.0}
    every, last, other = (
        [*map(Synthetic(**long, **more).document, range(30))]
        for more in ({}, {"asks": "last"}, {"asks": "last", "seed": 1})
    )
    assert {len(ASKED.findall(document)) for document in last} == {1}
    assert min(len(ASKED.findall(document)) for document in every) >= 4
    assert all(ASKED.search(document).end() == len(document) for document in last)
    assert not {*last} & {*other}
    assert not any(document.startswith("There is") for document in last), "the first section asks nothing"


def test_a_document_worked_by_hand():
    lengths = {"median_tokens": 70, "log_std": 0.3, "section_tokens": 60}
    corpus = Synthetic(words=8, digits=2, quote_prob=0.4, number_prob=0.2, repeat_prob=0.5, **lengths)
    text = corpus.document(49)
    assert text == DOCUMENT


def numbers_and_answers(**settings):
    """The numbers that documents state, in order, with their distances to the question, and those of the answer."""
    corpus = Synthetic(median_tokens=400.0, log_std=0.1, section_tokens=4096.0, question_prob=1.0, **settings)
    for index in range(150):
        body, _, asked = corpus.document(index).partition("\n\nWhat are")
        stated = re.finditer("One of the magic numbers is ([0-9]+)", body)
        distances = {each[1]: len(body[each.start() :].split()) for each in stated}
        yield body, distances, re.findall("[0-9]+", asked)


def test_the_order_of_an_answer_changes_nothing_else():
    """By text: the same documents ask for their numbers as stated, in reverse, or in random order."""
    stated, reverse, shuffled = (list(numbers_and_answers(order=order)) for order in ("stated", "reversed", "shuffled"))
    assert [asked for _, _, asked in stated] == [list(distances) for _, distances, _ in stated]
    assert [asked for _, _, asked in reverse] == [list(distances)[::-1] for _, distances, _ in stated]
    assert all(body == other for (body, _, _), (other, _, _) in zip(stated, shuffled, strict=True))
    assert all(sorted(asked) == sorted(distances) for _, distances, asked in shuffled)
    # Each of four numbers comes first in a quarter of 150 documents, 37.5 +- 5.3.
    first = [list(distances).index(asked[0]) for _, distances, asked in shuffled]
    assert all(20 <= first.count(rank) <= 56 for rank in range(4))


@pytest.mark.parametrize(("spread", "median"), [("log-uniform", 20), ("uniform", 190)])
def test_numbers_are_spread_over_the_document(spread, median):
    """Of 400 tokens the root is the middle of log-uniform distances, and half that of uniform ones."""
    documents = list(numbers_and_answers(numbers=1, spread=spread))
    assert {len(distances) for _, distances, _ in documents} == {1}
    words = sorted(distance for _, distances, _ in documents for distance in distances.values())
    assert words[75] == pytest.approx(median, rel=0.4)
