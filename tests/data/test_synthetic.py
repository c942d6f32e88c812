import hashlib
import re

import pytest

from lab.data.config import Synthetic

ASKED = re.compile(r"What are the magic numbers mentioned in the provided text\? The numbers are [0-9, and]+\.")


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
