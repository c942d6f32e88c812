"""The prompts of the released script: HKUNLP/STRING, niah/test_niah_llama.py, commit 216cc2f.

`HASHES` are of the texts that the script itself returns for HAYSTACK and a tokenizer of one token a byte, with its own
numbers and depths, test after test. All other lengths are compared with a reconstruction from the rules.
"""

import hashlib
import random

import pytest

from eval.needles import released_prompt
from lab.probe import released_needles
from lab.probe.config import ProbeConfig

HAYSTACK = ".".join(
    f" Line {k} of {k % 7 + 1} holds {k / 8:.2f} words" + " and more" * (k % 23) + ".." * (k % 11 == 3)
    for k in range(1200)
)
NUMBERS = ["770487", "216739", "126225", "877572"]
TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
)
HASHES = {  # by length, test, and whether the question is that for Llama-3.1
    (640, 0, False): "b9a92fdea1647d68",
    (1024, 0, False): "912ae78ba8a082eb",
    (2048, 1, False): "5a86689e53df968f",
    (2048, 2, False): "993b0d98c6159a59",
    (65000, 0, False): "1094547b2b6baef2",
    (640, 0, True): "2a0077e8c8d4114e",
    (640, 1, True): "72e3df113cd9eff5",
    (2048, 0, True): "f7f95d88067c4463",
    (2048, 2, True): "f3ceb413087f0797",
    (65000, 0, True): "e60673e083e06688",
}


def ids(tokenizer, text):
    return tokenizer.encode(text).ids


def rebuilt(tokenizer, haystack, length, tests, *, llama31=False, size=1):
    """Write the first tests of a length piece by piece, as the script's rules have it."""
    stream = random.Random(42)
    numbers = [str(stream.randint(10**5, 10**6)) for _ in range(4)]
    ending = "\n\nWhat are the magic numbers mentioned in the provided text?\n" + (
        " " if llama31 else "The numbers are"
    )
    sentences = haystack.split(".")
    groups = [".".join(sentences[k : k + size]) for k in range(0, len(sentences), size)]
    for _ in range(tests):
        depths = [k * (0.99 / 4) + stream.uniform(0, 0.99 / 4) for k in range(4)]
        for n in range(len(groups)):
            ends = [int(depth * n) for depth in depths]
            parts = [".".join(groups[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
            text = "".join(
                f"{part}.  One of the magic number is: {number}. " for part, number in zip(parts, numbers, strict=True)
            )
            text += ". ".join(groups[ends[3] : n]) + ". \n" + ending
            if len(ids(tokenizer, text)) + len(ids(tokenizer, TASK)) > length - 128:
                yield TASK + (text[1:] if text[0] == "." else text), numbers, depths
                break


@pytest.mark.parametrize(("length", "test", "llama31"), HASHES)
def test_the_text_is_the_released_scripts(bytewise, length, test, llama31):
    prompt = released_prompt(bytewise, HAYSTACK, length, test, llama31=llama31)
    assert hashlib.sha256(prompt.text.encode()).hexdigest()[:16] == HASHES[length, test, llama31]
    assert released_needles.sample_draws(0, test).numbers == NUMBERS


@pytest.mark.parametrize("llama31", [False, True], ids=["question_with_words", "llama31"])
@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_every_length_has_the_tokens_of_the_rules(request, name, llama31):
    tokenizer = request.getfixturevalue(name)
    config = ProbeConfig(protocol="released_llama31" if llama31 else "released")
    least = released_needles.shortest(config, tokenizer)
    for length in (least, least + 333, least + 1601):
        expected = rebuilt(tokenizer, HAYSTACK, length, 3, llama31=llama31)
        for test, (text, numbers, depths) in enumerate(expected):
            case = released_needles.sample_case(config, tokenizer, HAYSTACK, length, test)
            assert case.prompt_ids == ids(tokenizer, text), (length, test)
            assert (case.numbers, case.depths) == (numbers, depths)
            prompt = released_prompt(tokenizer, HAYSTACK, length, test, llama31=llama31)
            assert [prompt.text[place : place + 6] for place in prompt.places] == numbers
            tails = [tokenizer.decode(case.prompt_ids[-1 - distance :]) for distance in case.distances]
            assert all(tail.lstrip().startswith(n) for tail, n in zip(tails, numbers, strict=True))
