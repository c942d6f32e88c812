"""MQAR: documents and labels by brute force, and the law of gaps against its closed form."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from lab.data.beside import labels_of
from lab.data.config import Bpe, DataConfig
from lab.data.corpora import open_corpus
from lab.data.mqar import Mqar
from lab.data.preparation import prepare
from lab.data.shards import TokenStore
from lab.data.synthetic import QUESTION
from lab.data.tokenizer import load_tokenizer, obtain_tokenizer
from lab.schema import validated
from tests.refusals import refused

DOCUMENTS = 2500
WITHIN = 4.5  # standard errors of a share; of the 39 below the largest is 4.5 in one of 4,000 seeds


def split(corpus, index):
    """Read a document as pairs of words: those stated, and those of the slots."""
    words = corpus.document(index).split()
    assert len(words) == corpus.tokens
    pairs = [*zip(words[::2], words[1::2])]
    return pairs[: corpus.pairs], pairs[corpus.pairs :]


def test_every_key_is_asked_for_once_and_its_value_follows():
    corpus = Mqar(words=24, pairs=5, tokens=32, power_a=0.5)
    all_keys, all_values = set(), set()
    for index in range(300):
        stated, slots = split(corpus, index)
        keys, values = zip(*stated)
        assert len({*keys, *values}) == 10
        assert Counter(slot for slot in slots if slot[0] in keys) == Counter(stated)
        assert not {word for slot in slots if slot not in stated for word in slot} & {*keys, *values}
        all_keys |= {*keys}
        all_values |= {*values}
    assert (len(all_keys), len(all_values), all_keys & all_values) == (12, 12, set())


def shares(corpus):
    """Measure how often each pair is asked for in each slot."""
    found = np.zeros((corpus.pairs, corpus.tokens // 2 - corpus.pairs))
    for index in range(DOCUMENTS):
        stated, slots = split(corpus, index)
        for pair, words in enumerate(stated):
            found[pair, slots.index(words)] += 1 / DOCUMENTS
    return found


@pytest.mark.parametrize(("power_a", "exponent"), [(1.0, 0), (3.0, 2)], ids=["uniform", "rising"])
def test_the_law_of_gaps_worked_in_fractions(power_a, exponent):
    """Of two keys the second has the slots that the first leaves: P(s) = sum over r != s of P(r) P(s) / (1 - P(r))."""
    corpus = Mqar(words=12, pairs=2, tokens=14, power_a=power_a)
    weights = [Fraction(slot**exponent) for slot in range(1, 6)]
    first = [weight / sum(weights) for weight in weights]
    second = [sum(first[r] * first[s] / (1 - first[r]) for r in range(5) if r != s) for s in range(5)]
    for found, law in zip(shares(corpus), (first, second), strict=True):
        for one, share in zip(found, law, strict=True):
            assert abs(one - share) < WITHIN * float(share * (1 - share) / DOCUMENTS) ** 0.5


def test_stored_labels_are_the_distances_to_the_values(tmp_path):
    corpus = Mqar(documents=400, words=24, pairs=5, tokens=32, power_a=0.5)
    config = DataConfig(corpus=corpus, tokenizer=Bpe(vocab_size=500), folder=str(tmp_path), held_out_frac=0.2)
    folder = prepare(config, progress=False).folder
    tokenizer = load_tokenizer(folder)
    seen = 0
    for split_name in ("train", "held_out"):
        (shard,) = TokenStore.open(folder, split_name).shards
        labels = labels_of(shard, config, tokenizer)
        for document in range(len(shard.ends)):
            words = [tokenizer.decode([token]).strip() for token in shard.tokens[shard.part(document)]][1:-1]
            assert len(words) == 32, "a word is one token"
            expected = np.zeros(34)  # the first token and the last are none of the words'
            for place in range(10, 32, 2):
                if words[place] in words[:10:2]:
                    expected[place + 2] = place - words.index(words[place])
            assert np.count_nonzero(expected) == 5
            assert labels[shard.part(document)].tolist() == expected.tolist()
            seen += 1
    assert seen == 400


def test_what_has_no_room_is_refused():
    with refused("tokens=31: must be even and >= 32, twice two for each of pairs=8; "):
        validated(Mqar, {"tokens": 31})
    with refused("words=17: must be >= 18, or none is left for filler; "):
        validated(Mqar, {"words": 17})


def test_a_vocabulary_of_its_text_knows_the_words_of_needle_tests(tmp_path):
    """Spelt in letters, they would not fit into the windows of small models."""
    config = DataConfig(corpus=Mqar(documents=200), tokenizer=Bpe(vocab_size=600))
    question = obtain_tokenizer(config, tmp_path, open_corpus(config)).encode(QUESTION, add_special_tokens=False).tokens
    assert len(question) < 2 * len(QUESTION.split())
