import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lab.counts import PositionCounts
from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import distance
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe, build_distance_probe, log_probs
from lab.probe.effective_length import NeedleProbe
from lab.probe.limits import share_limits
from lab.probe.measuring import Measuring, ModelInTraining, reach_record
from lab.probe.probe import Worker
from lab.probe.reach import reach
from tests.eval.answering import Reader
from tests.probe.test_effective_length import HAYSTACK, STOP
from tests.tokenizer_forms import EXACT, make_tokenizer

WINDOW = 160
QUESTION = "\n\nWhat are the magic numbers mentioned in the provided text? The numbers are"  # 76 characters
NEEDLE = " One of the magic numbers is "  # 29 characters


class Sees(Reader):
    """Reads whole numbers off the last tokens of a prompt, and finds every token of an answer as likely as 1 in 4."""

    def __init__(self, tokenizer, distance):
        say = lambda text: f" {(re.findall(r'(?<![0-9])[0-9]{3}(?=[.])', text) or ['000'])[0]}."  # noqa: E731
        super().__init__(tokenizer, distance + 1, say, STOP)

    def losses(self, tokens, targets):
        return (targets >= 0) * math.log(4)


def make_probe(tokenizer, window=WINDOW, distance_tests=10, **settings):
    config = ProbeConfig(seed=3, digits=3, distance_tests=distance_tests, batch=4, **settings)
    return DistanceProbe(config, tokenizer, HAYSTACK, window=window, stop_id=STOP)


def test_a_model_that_sees_50_tokens_reaches_50(bpe):
    probe = make_probe(bpe, distances=(40, 50, 51, 60, 90))
    results = list(probe.run(Sees(bpe, 50)))
    assert [(r.length, r.passed, r.tests) for r in results] == [(d, 10 * (d <= 50), 10) for d in (40, 50, 51, 60, 90)]
    assert {(r.low, r.high) for r in results} == {share_limits(10, 10, 0.95), share_limits(0, 10, 0.95)}
    # 1 at 50 and 0 at 51: 0.8 is a fifth of the way. 10 of 10 may be as few as 0.69, 0 of 10 as many as 0.31
    ends = {"first_distance": 40, "last_distance": 90, "dips": [], "best_distance": None}
    assert reach(results, 0.8) == {"reach": 50.2, "reach_low": None, "reach_high": 50.3, **ends}
    assert reach(results, 0.5)["reach_low"] == 50.3  # of the way from 0.69 to 0, 0.28
    assert [row["log_prob"] for r in results for row in r.cases] == [round(-3 * math.log(4), 6)] * 50
    assert probe.record(results[0], {}, None)["log_prob"] == round(-3 * math.log(4), 6)


def test_log_probabilities_are_those_of_all_logits_in_float64(bpe):
    # bpe spells " 472." in five tokens: blank, which ends the prompt, three digits, which are scored, stop
    decoder = Decoder(DecoderConfig(16, 2, 4, 2, 24, vocab_size=400, tie_embeddings=False)).double()
    probe = make_probe(bpe, distances=(60,))
    cases = [probe.case(60, k) for k in range(3)]

    class Model:
        def losses(self, tokens, targets):
            with torch.no_grad():
                return decoder(tokens, targets=targets, summed=False)

    expected = []
    for case in cases:
        ids = [*case.prompt_ids, *bpe.encode(f" {case.numbers[0]}.", add_special_tokens=False).ids[1:]]
        log_p, first = torch.log_softmax(decoder(torch.tensor([ids]))[0].detach(), -1), len(case.prompt_ids)
        assert bpe.decode(ids[first : first + 3]) == case.numbers[0]
        expected.append(sum(float(log_p[place - 1, ids[place]]) for place in range(first, first + 3)))
    assert log_probs(Model(), cases, probe.budget, "cpu") == pytest.approx(expected, abs=1e-9)


def test_the_records_of_distances(bpe):
    probe = make_probe(bpe, distances=(40, 60), distance_tests=20)
    results = list(probe.run(Sees(bpe, 50)))
    counts = PositionCounts(60)
    counts.add_segments([60])  # f(i) = 60 - i, and nothing is known of 60
    line = probe.record(results[0], {"model": "m"}, counts)
    names = ("distance", "n", "found", "score", "f", "needles", "digits", "prompt_tokens", "seed", "model")
    assert [line[name] for name in names] == [40, 20, 20, 1.0, 20, 1, 3, WINDOW - 4, 3, "m"]
    assert [probe.record(results[k], {}, c)["f"] for k, c in ((1, counts), (0, None))] == [None, None]
    # from 1 at 40 to 0 at 60
    assert reach_record(results, 0.8, counts) == {**reach(results, 0.8), "f_at_reach": 60 - 44}
    nothing = [replace(result, passed=0) for result in results]
    assert reach_record(nothing, 0.8, counts)["f_at_reach"] is None


def test_f_of_a_distance_is_that_of_its_position(bytewise):
    """During training f is shown at the position that the method puts a distance at."""
    words = " ".join(f"bake{k % 7}" for k in range(2000))
    config = ProbeConfig(digits=3, tests=1, step=512, max_length=512, distance_tests=1, distances=(120, 190))
    probe = NeedleProbe(config, bytewise, words, window=320, stop_id=None)
    decoder = Decoder(DecoderConfig(8, 1, 1, 1, 8, bytewise.get_vocab_size(), tie_embeddings=False), seed=0)
    decoder.distance = distance("string", shift=100, window=10)  # 120 is at 20 + 10, 190 at 90 + 10
    counts = PositionCounts(320)
    counts.add_segments([320])  # f(i) = 320 - i
    model = ModelInTraining(decoder, None, torch.no_grad)
    lines, _ = Measuring(probe, build_distance_probe(probe)).run(model, Worker(), {}, counts, lambda _: True)
    assert {line["distance"]: line["f"] for line in lines if "distance" in line} == {120: 290, 190: 220}


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


def test_the_distance_is_exact_and_the_window_filled_at_every_distance(tokenizer):
    test = make_probe(tokenizer, window=320)
    for length, number in itertools.product(test.reachable[:: max(1, len(test.reachable) // 40)], range(3)):
        case = test.case(length, number)
        answer = tokenizer.encode(f" {case.numbers[0]}.", add_special_tokens=False).ids
        blank = answer[:1] if tokenizer.decode(answer[:1]) == " " else []
        assert case.prompt_ids[len(case.prompt_ids) - len(blank) :] + case.encoded.answer == answer
        assert len(case.prompt_ids) + test.budget == 320 >= 320 - test.budget + len(case.encoded.answer)
        place = len(case.prompt_ids) - 1 - length
        before, upto = (tokenizer.decode(case.prompt_ids[:n]) for n in (place, place + 1))
        assert before.endswith(("magic numbers is", "magic numbers is "))
        assert re.search(rf"is {case.numbers[0][0]}[0-9]*$", upto.rstrip("."))
        text = tokenizer.decode(case.prompt_ids)
        assert text.endswith(f"{QUESTION} " if blank else QUESTION)
        assert re.findall(f"{NEEDLE}([0-9]+)[.]", text) == case.numbers
        haystack = re.sub(rf"{NEEDLE}[0-9]+[.]|<bos>", "", text.removesuffix(" ").removesuffix(QUESTION))
        assert haystack[:-8] in f"{HAYSTACK} {HAYSTACK}", "one contiguous piece, apart from its last word"
        after = text.partition(f" {case.numbers[0]}.")[2]
        assert re.match(r" ?[b\n]", after), "the needle is where a word begins"


@pytest.mark.parametrize("form", [*EXACT, "always", "first", "unigram"])
def test_a_number_has_the_same_tokens_in_needle_and_answer(form):
    tokenizer = make_tokenizer(form)
    test = make_probe(tokenizer, window=320)
    for length, number in itertools.product(test.distances, range(3)):
        case = test.case(length, number)
        ids = [*case.prompt_ids, *case.encoded.answer]
        text = tokenizer.decode(ids)
        answer = f" {case.numbers[0]}."
        assert text.endswith(f"{QUESTION}{answer}")
        assert f" {text}".count(f"{NEEDLE}{answer[1:]}") == 1
        if form in EXACT:
            # the haystack begins anywhere, so that its first token may be part of one
            assert ids[8:] == tokenizer.encode(text).ids[-len(ids) + 8 :]
        n = len(case.encoded.answer) + test.lead
        begin = len(case.prompt_ids) - 1 - length - test.lead - case.encoded.scored[0]
        assert ids[begin : begin + n] == ids[-n:]
        assert tokenizer.decode(ids[begin : begin + n]).strip() == answer.strip()


def test_distances_that_can_be_reached_by_hand(bytewise):
    # 4 bytes for the answer "472." leave 196; from a number's first digit on, 3 bytes of needle and 77 of the question
    # follow, with the blank before every answer; 29 bytes of needle and the number's first digit are before it
    reachable = make_probe(bytewise, window=200).reachable
    assert (reachable[0], reachable[-1]) == (77 + 3, 196 - 1 - 29)
