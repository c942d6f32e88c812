import hashlib
import re

import numpy as np
import pytest

from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe

STATED = re.compile(r"One of the magic numbers is ([0-9]+)\.")
ASKED = re.compile(
    r"What are the magic numbers mentioned in the provided text\?"
    r" The numbers are ([0-9]+(?:, [0-9]+)*(?: and [0-9]+)?)\."
)
DOCUMENTS = 400


def text(window=256, **settings):
    return natural(window, **settings)


def natural(window, **settings):
    return Synthetic(median_tokens=0.26 * window, section_tokens=float(window), **settings)


@pytest.fixture(scope="module")
def documents():
    return [*map(text().document, range(DOCUMENTS))]


@pytest.mark.parametrize(
    ("settings", "sha"),  # of the first 200, when median and section were 0.26 and 1 windows, at commit c95ff25
    [({}, "ab2510c342deb6c0"), ({"median_tokens": 99.84, "section_tokens": 384.0, "digits": 6}, "93799102984063df")],
    ids=["defaults_at_192", "at_384"],
)
def test_documents_are_those_of_earlier_versions(settings, sha):
    documents = "\n".join(map(Synthetic(**settings).document, range(200)))
    assert hashlib.sha256(documents.encode()).hexdigest()[:16] == sha


def test_answer_repeats_in_order_what_its_section_stated():
    asked, most = 0, 0
    for document in map(text().document, range(DOCUMENTS)):
        begin = 0
        for question in ASKED.finditer(document):
            before = STATED.findall(document[begin : question.start()])
            answer = re.findall("[0-9]+", question[1])
            assert answer == before
            assert len(set(answer)) == len(answer)
            asked, most, begin = asked + 1, max(most, len(answer)), question.end()
        assert document.count("What are the magic numbers") == len(ASKED.findall(document))
        assert len(STATED.findall(document[begin:])) == 0, "a number is stated and never asked for"
    assert asked > 60
    assert most == 4


def segment_lengths(window, n_documents):
    """Cut tokenized documents of the natural shape every `window` tokens, by definition."""
    texts = [*map(text(window).document, range(n_documents))]
    tokenizer = train_bpe(texts[:600], 640)
    lengths = []
    for encoding in tokenizer.encode_batch(texts):
        left = len(encoding.ids) + 1  # with <eos>
        while left > 0:
            lengths.append(min(left, window))
            left -= window
    return np.array(lengths)


@pytest.mark.parametrize(("window", "n_documents"), [(128, 3000)])
def test_lengths_of_the_natural_median_have_the_shape_of_slimpajama(window, n_documents):
    # arXiv:2410.18745, section 2, at L = 2048: f(i) = sum of max(|s| - i, 0)
    lengths = segment_lengths(window, n_documents)
    f = np.array([np.maximum(lengths - i, 0).sum() for i in range(window)])
    measured = {
        "near": f[: window // 2 + 1].sum() / f.sum(),
        "far": f[3 * window // 4 :].sum() / f.sum(),
        "eighth_to_quarter": np.mean((lengths >= window // 8) & (lengths <= window // 4)),
        "full": np.mean(lengths == window),
    }
    assert measured["near"] > 0.80
    assert measured["far"] < 0.05
    assert abs(measured["eighth_to_quarter"] - 0.20) <= 0.06
    assert abs(measured["full"] - 0.20) <= 0.08


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
