"""Models whose effective length is known beforehand, behind the evaluation protocol."""

import re

import numpy as np
import pytest

from lab.probe.config import ProbeConfig
from lab.probe.effective_length import NeedleProbe
from lab.probe.limits import effective_lengths
from tests.eval.answering import Reader

SEEN = 700  # tokens
HAYSTACK = " ".join(f"bake{'.' if k % 7 == 6 else ''}" for k in range(4000))
NEEDLE = re.compile(r"One of the magic numbers? is:? ([0-9]+)\.")
BUDGET, STOP = 40, 1
MODES = {"all": {}, "sequential": {"sequential": True}}


def make_probe(bpe, protocol, **settings):
    sizes = {"step": 128, "max_length": 2048, "needles": 4, "digits": 6}
    sizes |= {} if protocol == "released" else {"answer_budget": BUDGET}
    config = ProbeConfig(protocol=protocol, **{**sizes, "seed": 5, **settings})
    return NeedleProbe(config, bpe, HAYSTACK, window=512, stop_id=STOP)


def true_share(probe, length, required):
    """Give the share of tests in which the last `required` needles begin among the tokens seen.

    Needle m of 4 stands at a depth uniform between 0.99 (m - 1) / 4 and 0.99 m / 4 of the n_hay tokens of haystack, so
    that (1 - depth) n_hay of it, the needles from m on and the question come after; a needle is read from its first
    word, which is behind a blank that goes with it.
    """
    tokenizer = probe.tokenizer
    tail = "\n\nWhat are the magic numbers mentioned in the provided text? The numbers are"
    question = len(tokenizer.encode(tail, add_special_tokens=False).ids)
    needle = len(tokenizer.encode(" One of the magic numbers is 123456.", add_special_tokens=False).ids)
    prompt = len(probe.case(length, 0).prompt_ids)
    task = len(
        tokenizer.encode(
            "There is an important info hidden inside a lot of irrelevant text. Find it and "
            "memorize them. I will quiz you about the important information there.\n\n"
        ).ids
    )
    n_hay, m = prompt - task - 4 * needle - question, 5 - required
    least = 1 - (SEEN - question - required * needle) / n_hay
    return float(np.clip((0.99 * m / 4 - least) / (0.99 / 4), 0, 1))


def assert_known_answer(probe, required):
    copy = lambda text: " " + ", ".join(NEEDLE.findall(text)) + "."  # noqa: E731
    model = Reader(probe.tokenizer, SEEN, copy, STOP)
    results = list(probe.run(model))
    assert model.prompts == sum(result.tests for result in results)
    shares = [true_share(probe, length, required) for length in probe.lengths]
    for result, share in zip(results, shares, strict=True):
        deviation = (share * (1 - share) / result.tests) ** 0.5
        assert abs(result.accuracy - share) <= 4 * deviation + 0.02  # a token of haystack moves it by less than 0.01
    true = max(length for length, share in zip(probe.lengths, shares, strict=True) if share >= 0.8)
    values = effective_lengths(results, 0.8)
    assert values["effective_length"] == true
    open_ended = {name: np.inf for name in ("high", "smooth_high") if values[name] is None}
    values |= open_ended
    assert values["low"] <= true <= values["high"]
    crossed = np.interp(-0.8, [-share for share in shares], probe.lengths)
    assert values["smooth_low"] - 1 <= crossed <= values["smooth_high"] + 1


@pytest.mark.parametrize(("required", "step", "true"), [(2, 640, 1280), (4, 576, 576)])
@pytest.mark.parametrize("mode", MODES)
def test_a_copier_that_sees_700_tokens(bpe, mode, required, step, true):
    probe = make_probe(bpe, "ours", required=required, step=step, tests=40, **MODES[mode])
    assert true_share(probe, true, required) == 1
    assert true_share(probe, true + step, required) < 0.6
    assert_known_answer(probe, required)
