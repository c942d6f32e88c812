import re

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from eval.engine.answers import score_answer
from eval.engine.cases import TextCase
from lab.core.errors import DataError
from lab.probe import released_needles
from lab.probe.needles import count_found, first_numbers, make_case

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n\n"
)
QUESTION = "\n\nWhat are the magic numbers mentioned in the provided text? The numbers are"
HAYSTACK = " ".join(f"w{k % 97}{'.' if k % 9 == 8 else ''}" for k in range(3000))
BUDGET = 24


def rng(*seed):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def words():
    """A word-level tokenizer without special tokens that knows the test's words and no number."""
    fixed = TASK + " One of the magic numbers is ." + QUESTION + HAYSTACK
    vocab = {word: k for k, word in enumerate(dict.fromkeys(["?unknown", *re.findall(r"\w+|[^\w\s]+", fixed)]))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?unknown"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture(params=["bpe", "words", "bytewise"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def shortest(tokenizer, n_needles=4, digits=6):
    """Count the tokens of the fixed parts with one token of haystack for each needle."""
    needle = len(tokenizer.encode(f" One of the magic numbers is {'1' * digits}.", add_special_tokens=False).ids)
    tail = len(tokenizer.encode(QUESTION, add_special_tokens=False).ids)
    return len(tokenizer.encode(TASK).ids) + n_needles * (needle + 1) + tail + BUDGET


@pytest.mark.parametrize("seed", range(2))
def test_a_case_is_exactly_as_long_as_asked(tokenizer, seed):
    least = shortest(tokenizer)
    for length in (least, least + 1, least + 17, 2 * least, 1024 + seed, 2048):
        case = make_case(tokenizer, HAYSTACK, length, BUDGET, rng(seed, length))
        assert len(case.prompt_ids) + BUDGET == length
        assert all(isinstance(token, int) for token in case.prompt_ids)


@pytest.mark.parametrize("needles", [1, 4])
def test_one_needle_stands_in_each_part_of_the_first_99_percent(bpe, needles):
    drawn = []
    for test in range(120):
        case = make_case(bpe, HAYSTACK, 700, BUDGET, rng(2, test), needles=needles)
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
        case = make_case(tokenizer, HAYSTACK, shortest(tokenizer) + 400, BUDGET, rng(3, test))
        text = tokenizer.decode(case.prompt_ids)
        assert text.startswith(TASK)
        assert text.endswith(QUESTION)
        assert re.findall(r" One of the magic numbers is ([0-9]+)\.", text) == case.numbers
        rest = re.sub(r" One of the magic numbers is [0-9]+\.", "", text[len(TASK) : -len(QUESTION)])
        assert rest[:-8] in f"{HAYSTACK} {HAYSTACK}", "a contiguous piece of the haystack, apart from its last word"


@pytest.mark.parametrize("haystack", ["", " ", "\n\t \n"], ids=["empty", "space", "lines"])
def test_an_empty_haystack_is_refused(bpe, haystack):
    with pytest.raises(DataError) as caught:
        make_case(bpe, haystack, 1024, BUDGET, rng(9))
    assert str(caught.value).startswith("haystack: empty; give ")


@pytest.mark.parametrize(
    ("text", "numbers", "count"),
    [
        pytest.param("The numbers are 12, 34 and 56.", ["12", "34", "56"], 3, id="all"),
        pytest.param("12 12 12", ["12", "34"], 1, id="repeats_count_once"),
        pytest.param("123", ["12", "23"], 0, id="inside_a_longer_number"),
        pytest.param("012 12", ["12"], 1, id="once_whole_once_inside"),
        pytest.param("a12b", ["12"], 1, id="beside_letters"),
        pytest.param("144231144232", ["144231", "144232"], 0, id="glued"),
        pytest.param("", ["12"], 0, id="nothing"),
        pytest.param("1. 770487\n2. 216739", ["770487", "216739"], 2, id="list"),
        pytest.param("**770,487**, 216,739 and 12.", ["770487", "216739"], 2, id="commas"),
        pytest.param(
            "770 487; 216\u2019739; 1'262'255; 877_572", ["770487", "216739", "1262255", "877572"], 4, id="more"
        ),
        pytest.param("7,70,487", ["770487"], 1, id="lakh"),
        pytest.param("345,678", ["345", "678", "345678"], 3, id="either_reading"),
        pytest.param("770,4871 9,770,487 1770,487 770,487,12 77,0487", ["770487"], 0, id="other_groups"),
        pytest.param("770.487 770-487", ["770487"], 0, id="decimals_and_ranges"),
        pytest.param(r"$770{,}487$, \boxed{216\,739}", ["770487", "216739"], 2, id="latex"),
        pytest.param(r"770{,}4871 9{,}770{,}487 1\,770\,487", ["770487"], 0, id="latex_of_others"),
        pytest.param("#770487, 216\u202f739. 1) 877\u00a0572", ["770487", "216739", "877572"], 3, id="thin_spaces"),
    ],
)
def test_only_whole_numbers_are_found(text, numbers, count):
    assert count_found(text, numbers) == count


ANSWERS = [
    "770487",
    "770,487 it is",
    "1. 770487",
    "**1)** 770 487",
    "Yes:\n 2: 770,487. 3: 5",
    "Step 1: 770{,}487",
    "Step 1: look.\nStep 2: 770487",
]
ANSWERS += ["**Step 2**: #770487", "770\u202f487.", "(1) 770\\,487", "$770487$"]


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("wrong", ["", "7", "70", "11 "])
def test_the_first_number_may_be_in_groups_or_in_a_list(text, wrong):
    case = TextCase(np.array([1]), "", ("770487",), {})
    assert score_answer(case, text.replace("770", wrong + "770"), first_numbers)["passed"] == (not wrong)
    assert released_needles.count_found(text, ["770487"]) == ("770487" in text)
