import hashlib
import random
import re

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from eval.engine.answers import score_answer
from eval.engine.cases import TextCase
from eval.needles import released_prompt
from lab.core.errors import DataError
from lab.probe import released_needles
from lab.probe.config import ProbeConfig
from lab.probe.needles import count_found, first_numbers, make_case
from tests.refusals import refused
from tests.tokenizer_forms import EXACT, VOCABULARY, make_tokenizer

TASK = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
TASK += "I will quiz you about the important information there.\n\n"
QUESTION = "\n\nWhat are the magic numbers mentioned in the provided text? The numbers are"
HAYSTACK = " ".join(f"w{k % 97}{'.' if k % 9 == 8 else ''}" for k in range(3000))
BUDGET = 24


@pytest.fixture(scope="module")
def words():
    """A word-level tokenizer without special tokens that knows the test's words and no number."""
    fixed = f"{TASK} One of the magic numbers is .{QUESTION}{HAYSTACK}"
    vocab = {word: k for k, word in enumerate(dict.fromkeys(["?unknown", *re.findall(r"\w+|[^\w\s]+", fixed)]))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?unknown"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def shortest(tokenizer):
    """Count the tokens of the fixed parts with one token of haystack for each needle."""
    needle, tail = (
        len(tokenizer.encode(text, add_special_tokens=False).ids)
        for text in (" One of the magic numbers is 111111.", QUESTION)
    )
    return len(tokenizer.encode(TASK).ids) + 4 * (needle + 1) + tail + BUDGET


@pytest.mark.parametrize("name", ["bpe", "words", "bytewise"])
def test_a_case_is_exactly_as_long_as_asked(request, name):
    tokenizer = request.getfixturevalue(name)
    least = shortest(tokenizer)
    for length in (least, least + 1, least + 17, 2 * least, 1025, 2048):
        case = make_case(tokenizer, HAYSTACK, length, BUDGET, np.random.default_rng((1, length)))
        assert len(case.prompt_ids) + BUDGET == length
        assert all(isinstance(token, int) for token in case.prompt_ids)


@pytest.mark.parametrize("needles", [1, 4])
def test_one_needle_stands_in_each_part_of_the_first_99_percent(bpe, needles):
    drawn = []
    for test in range(120):
        case = make_case(bpe, HAYSTACK, 700, BUDGET, np.random.default_rng((2, test)), needles=needles)
        assert len(case.depths) == len(case.numbers) == needles
        for k, depth in enumerate(case.depths):
            assert 0.99 * k / needles <= depth < 0.99 * (k + 1) / needles
        drawn.append(case.depths)
    # uniform in a part of width w: mean in its middle, standard deviation w / sqrt(12 * 120) = w / 38
    width = 0.99 / needles
    for k, mean in enumerate(np.mean(drawn, axis=0)):
        assert abs(mean - (k + 0.5) * width) < width / 7


@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_the_text_holds_all_parts_in_order(request, name):
    tokenizer = request.getfixturevalue(name)
    for test in range(12):
        case = make_case(tokenizer, HAYSTACK, shortest(tokenizer) + 400, BUDGET, np.random.default_rng((3, test)))
        text = tokenizer.decode(case.prompt_ids)
        assert (text[: len(TASK)], text[-len(QUESTION) :]) == (TASK, QUESTION)
        assert re.findall(r" One of the magic numbers is ([0-9]+)\.", text) == case.numbers
        tails = [tokenizer.decode(case.prompt_ids[-1 - distance :]) for distance in case.distances]
        assert all(tail.lstrip().startswith(number) for tail, number in zip(tails, case.numbers, strict=True))
        rest = re.sub(r" One of the magic numbers is [0-9]+\.", "", text[len(TASK) : -len(QUESTION)])
        assert rest[:-8] in f"{HAYSTACK} {HAYSTACK}", "a contiguous piece of the haystack, apart from its last word"


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("form", EXACT)
def test_a_prompt_has_the_tokens_of_its_whole_text(form, ends):
    """Parts that a tokenizer encodes alone may get a space each, or lose their line breaks."""
    tokenizer = make_tokenizer(form, begins=form != "strip", ends=ends)
    for test in range(4):
        case = make_case(tokenizer, HAYSTACK, 1300, BUDGET, np.random.default_rng((4, test)))
        text = tokenizer.decode(case.prompt_ids)
        wanted = tokenizer.encode(text + "|").ids  # so that the end is no edge
        assert case.prompt_ids == wanted[: -1 - ends]
        assert (len(case.prompt_ids) + BUDGET, text[: len(TASK)], text[-len(QUESTION) :]) == (1300, TASK, QUESTION)
        assert re.findall(r" One of the magic numbers is ([0-9]+)\.", text) == case.numbers
        rest = re.sub(r" One of the magic numbers is [0-9]+\.", "", text[len(TASK) : -len(QUESTION)])
        assert rest in f"{HAYSTACK} {HAYSTACK}"
        released = released_needles.sample_case(ProbeConfig(protocol="released"), tokenizer, HAYSTACK, 1600, test)
        assert VOCABULARY["</s>"] not in {*case.prompt_ids, *released.prompt_ids}


def test_a_tokenizer_that_reads_line_breaks_as_spaces():
    """XGLM's joins them to the spaces around; a prompt has all parts and numbers."""
    tokenizer = make_tokenizer("always")
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), one_space])
    case = make_case(tokenizer, HAYSTACK, 1300, BUDGET, np.random.default_rng(4))
    text = tokenizer.decode(case.prompt_ids)
    assert len(case.prompt_ids) + BUDGET == 1300
    assert re.findall(r" One of the magic numbers is ([0-9]+)\.", text) == case.numbers
    assert text.split()[: len(TASK.split())] == TASK.split()
    assert text.endswith(QUESTION.strip())


def test_a_tokenizer_that_changes_the_edges_of_texts_is_refused():
    tokenizer = make_tokenizer("never")
    tokenizer.normalizer = normalizers.Replace(Regex(r"\A"), " ")
    with refused("tokenizer.json: adds or deletes white space where a text begins", error=DataError):
        make_case(tokenizer, HAYSTACK, 1300, BUDGET, np.random.default_rng(4))


@pytest.mark.parametrize(("form", "digest"), {"always": "068d20fad9a86eb4", "never": "b22cd6906a995bd2"}.items())
def test_prompts_of_other_tokenizers_are_those_of_earlier_versions(form, digest):
    tokenizer = make_tokenizer(form)
    cases = [make_case(tokenizer, HAYSTACK, 1300, BUDGET, np.random.default_rng((4, test))) for test in range(4)]
    assert hashlib.sha256(repr([case.prompt_ids for case in cases]).encode()).hexdigest()[:16] == digest


def test_an_empty_haystack_is_refused(bpe):
    with refused("haystack: empty; ", error=DataError):
        make_case(bpe, "\n\t \n", 1024, BUDGET, np.random.default_rng(9))


FOUND = {  # how many of the numbers are in a text
    "12 12 34 and 56.": (["12", "34", "78"], 2),
    "123": (["12", "23"], 0),
    "012 12": (["12"], 1),
    "a12b": (["12"], 1),
    "144231144232": (["144231", "144232"], 0),
    "": (["12"], 0),
    "1. 770487\n2. 216739": (["770487", "216739"], 2),
    "**770,487**, 216,739 and 12.": (["770487", "216739"], 2),
    "770 487; 216\u2019739; 1'262'255; 877_572": (["770487", "216739", "1262255", "877572"], 4),
    "7,70,487": (["770487"], 1),
    "345,678": (["345", "678", "345678"], 3),
    "770,4871 9,770,487 1770,487 770,487,12 77,0487": (["770487"], 0),
    "770.487 770-487": (["770487"], 0),
    r"$770{,}487$, \boxed{216\,739}": (["770487", "216739"], 2),
    r"770{,}4871 9{,}770{,}487 1\,770\,487": (["770487"], 0),
    "#770487, 216\u202f739. 1) 877\u00a0572": (["770487", "216739", "877572"], 3),
}


@pytest.mark.parametrize("text", FOUND)
def test_only_whole_numbers_are_found_also_in_groups(text):
    numbers, count = FOUND[text]
    assert count_found(text, numbers) == count


ANSWERS = ["770487", "770,487 it is", "1. 770487", "**1)** 770 487", "Yes:\n 2: 770,487. 3: 5", "Step 1: 770{,}487"]
ANSWERS += ["Step 1: look.\nStep 2: 770487", "**Step 2**: #770487", "770\u202f487.", "(1) 770\\,487", "$770487$"]


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("wrong", ["", "7", "70", "11 "])
def test_the_first_number_may_be_in_groups_or_in_a_list(text, wrong):
    case = TextCase(np.array([1]), "", ("770487",), {})
    assert score_answer(case, text.replace("770", wrong + "770"), first_numbers)["passed"] == (not wrong)
    assert released_needles.count_found(text, ["770487"]) == ("770487" in text)


LINES = ".".join(
    f" Line {k} of {k % 7 + 1} holds {k / 8:.2f} words" + " and more" * (k % 23) + ".." * (k % 11 == 3)
    for k in range(1200)
)
NUMBERS = ["770487", "216739", "126225", "877572"]
# Prompts of the released script (HKUNLP/STRING, niah/test_niah_llama.py, commit 216cc2f): hashes of what it returns for
# LINES and a tokenizer of one token a byte, with its own numbers and depths; other lengths are rebuilt from its rules.
HASHES = {  # by length, test, and whether the question is that for Llama-3.1
    (640, 0, False): "b9a92fdea1647d68",
    (2048, 2, False): "993b0d98c6159a59",
    (65000, 0, False): "1094547b2b6baef2",
    (640, 0, True): "2a0077e8c8d4114e",
    (2048, 2, True): "f3ceb413087f0797",
    (65000, 0, True): "e60673e083e06688",
}


def rebuilt(tokenizer, haystack, length, tests, *, llama31=False, size=1):
    """Write the first tests of a length piece by piece, as the script's rules have it."""
    stream = random.Random(42)
    numbers = [str(stream.randint(10**5, 10**6)) for _ in range(4)]
    ending = QUESTION.replace("? The numbers are", "?\n " if llama31 else "?\nThe numbers are")
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
            if len(tokenizer.encode(text).ids) + len(tokenizer.encode(TASK[:-1]).ids) > length - 128:
                yield TASK[:-1] + (text[1:] if text[0] == "." else text), numbers, depths
                break


@pytest.mark.parametrize(("length", "test", "llama31"), HASHES)
def test_the_text_is_the_released_scripts(bytewise, length, test, llama31):
    prompt = released_prompt(bytewise, LINES, length, test, llama31=llama31)
    assert hashlib.sha256(prompt.text.encode()).hexdigest()[:16] == HASHES[length, test, llama31]
    assert released_needles.sample_needles(0, test).numbers == NUMBERS


@pytest.mark.parametrize("llama31", [False, True], ids=["question_with_words", "llama31"])
@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_every_length_has_the_tokens_of_the_rules(request, name, llama31):
    tokenizer = request.getfixturevalue(name)
    config = ProbeConfig(protocol="released_llama31" if llama31 else "released")
    least = released_needles.shortest(config, tokenizer)
    for length in (least, least + 333, least + 1601):
        expected = rebuilt(tokenizer, LINES, length, 3, llama31=llama31)
        for test, (text, numbers, depths) in enumerate(expected):
            case = released_needles.sample_case(config, tokenizer, LINES, length, test)
            assert case.prompt_ids == tokenizer.encode(text).ids, (length, test)
            assert (case.numbers, case.depths) == (numbers, depths)
            prompt = released_prompt(tokenizer, LINES, length, test, llama31=llama31)
            assert [prompt.text[place : place + 6] for place in prompt.indices] == numbers
            tails = [tokenizer.decode(case.prompt_ids[-1 - distance :]) for distance in case.distances]
            assert all(tail.lstrip().startswith(n) for tail, n in zip(tails, numbers, strict=True))
