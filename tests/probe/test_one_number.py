import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe
from lab.probe.needles import make_case

QUESTION = "\n\nWhat are the magic numbers mentioned in the provided text? The numbers are"  # 76 characters
NEEDLE = " One of the magic numbers is "  # 29 characters
HAYSTACK = " ".join(f"bake{'.' if k % 7 == 6 else ''}" for k in range(4000))


@pytest.fixture(scope="module", params=["bpe", "bytewise", "merged_digits"])
def tokenizer(request):
    """Digits apart after <bos>; a token for every byte; and numbers of one to four tokens, their blank included."""
    if request.param != "merged_digits":
        return request.getfixturevalue(request.param)
    merged, byte_level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    merged.pre_tokenizer, merged.decoder = byte_level, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=byte_level.alphabet(), show_progress=False)
    numbers = np.random.default_rng(0).integers(100, 999, 400)
    merged.train_from_iterator([QUESTION, NEEDLE, *map(" {}.".format, numbers)], trainer)
    return merged


def make_test(tokenizer, window=320, digits=3, seed=5):
    return DistanceProbe(ProbeConfig(digits=digits, seed=seed), tokenizer, HAYSTACK, window=window, stop_id=None)


def test_a_case_placed_by_hand(bytewise):
    # 4 bytes for the answer "472." leave 196: 66 of haystack, the needle's 29 + 4, 20 of haystack, 76 of the question
    # and the blank before every answer. From the number's first digit on, 3 bytes of needle, 20 and 77 follow: 100
    test = make_test(bytewise, window=200)
    text = test.tokenizer.decode(test.case(100, 0).prompt_ids)
    assert len(text) == 196
    assert (text[66:95], text[119:]) == (NEEDLE, f"{QUESTION} ")
    assert re.fullmatch(r"[0-9]{3}\.", text[95:99])
    assert f"{text[:66]}{text[99:119]}" in HAYSTACK, "one contiguous piece of the haystack"
    assert text[99] == "b" or text[99:101] == " b", "the needle is where a word begins"
    assert (test.reachable[0], test.reachable[-1]) == (77 + 3, 196 - 1 - 29)


def test_the_distance_is_exact_and_the_window_filled_at_every_distance(tokenizer):
    test = make_test(tokenizer)
    for distance in test.reachable[:: max(1, len(test.reachable) // 40)]:
        for number in range(3):
            case = test.case(distance, number)
            answer = tokenizer.encode(f" {case.numbers[0]}.", add_special_tokens=False).ids
            assert len(case.prompt_ids) + test.budget == 320
            blank = answer[:1] if tokenizer.decode(answer[:1]) == " " else []
            assert case.prompt_ids[len(case.prompt_ids) - len(blank) :] == blank
            assert [*blank, *case.encoded.answer] == answer
            assert len(case.encoded.answer) <= test.budget
            place = len(case.prompt_ids) - 1 - distance
            before, upto = (tokenizer.decode(case.prompt_ids[:n]) for n in (place, place + 1))
            assert before.endswith(("magic numbers is", "magic numbers is "))
            assert re.search(rf"is {case.numbers[0][0]}[0-9]*$", upto.rstrip("."))
            text = tokenizer.decode(case.prompt_ids)
            assert text.endswith(f"{QUESTION} " if blank else QUESTION)
            assert re.findall(f"{NEEDLE}([0-9]+)[.]", text) == case.numbers
            assert "info hidden" not in text, "no task line"


def test_four_needle_cases_know_their_distances(bytewise):
    for seed in range(5):
        case = make_case(bytewise, HAYSTACK, 1000, 60, np.random.default_rng(seed), digits=6)
        text = bytewise.decode(case.prompt_ids)
        places = [match.start(1) for match in re.finditer(f"{NEEDLE}([0-9]+)[.]", text)]
        assert case.distances == [len(text) - 1 - place for place in places]
        assert sorted(case.distances, reverse=True) == case.distances
