"""Signs at places: needles that share no word with their question."""

import re
from dataclasses import replace
from itertools import product

import pytest

from lab.data.associations import LANDMARKS, draw_signs
from lab.data.config import DataConfig, Synthetic
from lab.data.tokenizer import train_bpe
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe
from tests.eval.answering import Reader
from tests.probe.test_effective_length import STOP
from tests.probe.test_one_number import HAYSTACK

TAUGHT = Synthetic(words=16, associations=6)
STOP_WORDS = {"the", "at", "in", "be", "can", "are", "which"}
KNOWN = {"Eiffel": "Paris", "Colosseum": "Rome", "Buckingham": "London", "Brandenburg": "Berlin", "Acropolis": "Athens"}
KNOWN |= {"Red": "Moscow", "Liberty": "New York", "Golden": "San Francisco", "Sphinx": "Egypt", "Taj": "India"}
KNOWN |= {"Fuji": "Japan", "Machu": "Peru"}
WINDOW = 480
SIGN = re.compile(r"The sign at ([A-Za-z ]+) shows ([0-9]+)\.")
QUESTION = re.compile(r"\n\nWhich digits can be read (at|in) ([A-Za-z ]+)\? The digits are $")


class First:
    """Stands in for a generator that draws the first places, from `first` on."""

    def __init__(self, first):
        self.first = first

    def choice(self, n, size, replace):
        return [(self.first + k) % n for k in range(size)]


def content(text):
    return {*re.findall("[a-z]+", text.lower())} - STOP_WORDS


@pytest.mark.parametrize("pairs", [LANDMARKS, TAUGHT.places], ids=["known", "made_up"])
def test_no_needle_shares_a_word_with_a_question_by_a_region(pairs):
    signs, questions, literal = [], [], []
    for k in range(len(pairs)):
        (sign,), question = draw_signs(First(k), pairs, ["471"], 0, literal=False)
        signs.append(content(sign))
        questions.append(content(question))
        literal.append(content(draw_signs(First(k), pairs, ["471"], 0, literal=True)[1]))
    assert not [(sign, question) for sign, question in product(signs, questions) if sign & question]
    assert all(len(sign & question) >= 1 for sign, question in zip(signs, literal, strict=True))
    assert len({region for _, region in pairs}) == len({place for place, _ in pairs}) == len(pairs)


def make_probe(tokenizer, protocol="associated", window=WINDOW, **settings):
    config = ProbeConfig(digits=3, seed=5, **settings)
    return DistanceProbe(config, tokenizer, HAYSTACK, window=window, stop_id=STOP, protocol=protocol)


@pytest.mark.parametrize("protocol", ["associated", "literal"])
@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_the_distance_to_the_sign_asked_for_is_exact(name, protocol, request):
    tokenizer, window = request.getfixturevalue(name), 768
    probe = make_probe(tokenizer, protocol, window)
    ordered = set()
    for distance, test in product(probe.reachable[:: len(probe.reachable) // 7], range(3)):
        case = probe.case(distance, test)
        assert len(case.prompt_ids) + probe.budget == window
        before, rest = (
            tokenizer.decode(part) for part in (case.prompt_ids[: -1 - distance], case.prompt_ids[-1 - distance :])
        )
        assert before.rstrip(" ").endswith(" shows")
        assert rest.startswith(case.numbers[0] + ".")
        text = before + rest
        signs = SIGN.findall(text)
        how, where = QUESTION.search(text).groups()
        assert len({number for _, number in signs}) == len({place for place, _ in signs}) == 4
        place = next(place for place, number in signs if [number] == case.numbers)
        assert (where == place) if how == "at" else any(a in place and where == b for a, b in KNOWN.items())
        assert (how == "at") == (protocol == "literal")
        assert len(re.findall(" The sign at .* shows", text)) == 1, "the signs are side by side"
        ordered.add([number for _, number in signs].index(case.numbers[0]))
    assert ordered == {0, 1, 2, 3}


def test_both_questions_are_put_to_the_same_signs(bpe):
    one, other = (make_probe(bpe, protocol) for protocol in ("associated", "literal"))
    for test in range(5):
        cases = [probe.case(300, test) for probe in (one, other)]
        assert cases[0].numbers == cases[1].numbers
        first, second = (SIGN.findall(bpe.decode(case.prompt_ids)) for case in cases)
        assert first == second


def knows(text):
    how, where = QUESTION.search(text).groups()
    return next(
        number
        for place, number in SIGN.findall(text)
        if place == where or any(a in place and where == b for a, b in KNOWN.items() if how == "in")
    )


def matches(text):
    """Answer the sign with most words of the question; of equals the first."""
    question = content(QUESTION.search(text)[0])
    return max(SIGN.findall(text), key=lambda sign: len(content(sign[0]) & question))[1]


@pytest.mark.parametrize(
    ("reads", "protocol", "low", "high"),
    [
        (knows, "associated", 1.0, 1.0),
        (knows, "literal", 1.0, 1.0),
        (matches, "literal", 1.0, 1.0),
        (matches, "associated", 0.06, 0.44),  # a quarter, 4 standard errors of 80 tests
    ],
)
def test_who_knows_the_places_finds_all_and_who_matches_words_a_quarter(bpe, reads, protocol, low, high):
    probe = make_probe(bpe, protocol, distances=(160, 340), distance_tests=40)
    model = Reader(bpe, WINDOW, lambda text: f" {reads(text)}.", STOP)
    model.losses = lambda tokens, targets: (targets >= 0) * 1.0
    shares = [result.accuracy for result in probe.run(model)]
    assert low <= sum(shares) / 2 <= high


def test_the_corpus_states_where_places_lie_and_a_test_does_not():
    documents = [*map(TAUGHT.document, range(1000))]
    stated = re.findall(r"([A-Z][a-z]+) lies in ([A-Z][a-z]+)\.", "".join(documents))
    assert {*stated} == {*TAUGHT.places}
    region_of = dict(stated)
    how = {"at": 0, "in": 0}
    for document in documents:
        for found in re.finditer(r"Which digits can be read (at|in) (\w+)\? The digits are ([0-9]+)\.", document):
            signs = dict(SIGN.findall(document[: found.start()]))  # the section's are last
            known_by = signs if found[1] == "at" else {region_of[place]: number for place, number in signs.items()}
            assert known_by[found[2]] == found[3]
            how[found[1]] += 1
    assert min(how.values()) > 50
    tokenizer = train_bpe(documents[:200], 400)
    config = ProbeConfig(digits=3, seed=1)
    haystack = TAUGHT.filler(2**40, 5000)
    probe = DistanceProbe(
        config, tokenizer, haystack, window=256, stop_id=STOP, protocol="associated", pairs=TAUGHT.places
    )
    for test, distance in product(range(8), (probe.reachable[0], probe.reachable[-1])):
        text = tokenizer.decode(probe.case(distance, test).prompt_ids)
        assert "lies in" not in text
        (region,) = (region for _, region in TAUGHT.places if region in text)
        assert text.count(region) == 1
        assert QUESTION.search(text)[2] == region


def test_copies_of_signs_are_found_where_they_stand():
    for index in range(300):
        document = TAUGHT.document(index)
        for begin, end, source in TAUGHT.copies(index):
            if document[begin:end].isdigit():
                assert document[source - (end - begin) : source] == document[begin:end]


def test_a_corpus_without_associations_is_what_it_was_and_one_with_them_has_other_shards():
    plain, taught = DataConfig(), DataConfig(corpus=Synthetic(associations=4))
    assert "associations" not in plain.shard_identity()["corpus"], "as before there were any"
    names = {each.shard_name for each in (plain, taught, replace(taught, corpus=Synthetic(associations=5)))}
    assert len(names) == 3
