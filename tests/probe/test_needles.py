import re

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lab.errors import DataError
from lab.probe.needles import found, make_case

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


@pytest.mark.parametrize("seed", range(8))
def test_a_case_is_exactly_as_long_as_asked(tokenizer, seed):
    least = shortest(tokenizer)
    for length in (least, least + 1, least + 17, 2 * least, 1024 + seed, 2048):
        if length >= least:
            case = make_case(tokenizer, HAYSTACK, length, BUDGET, rng(seed, length))
            assert len(case.prompt_ids) + BUDGET == length
            assert all(isinstance(token, int) for token in case.prompt_ids)


@pytest.mark.parametrize("digits", [2, 3, 6, 9])
def test_numbers_are_fresh_distinct_and_of_their_digits(bpe, digits):
    drawn = []
    for test in range(40):
        case = make_case(bpe, HAYSTACK, 512, BUDGET, rng(1, test), digits=digits)
        assert len(set(case.numbers)) == len(case.numbers) == 4
        assert all(re.fullmatch(rf"[1-9][0-9]{{{digits - 1}}}", number) for number in case.numbers)
        drawn.append(tuple(case.numbers))
    assert len(set(drawn)) == 40, "every test has numbers of its own"


def test_defaults_are_four_numbers_of_six_digits(bpe):
    case = make_case(bpe, HAYSTACK, length=1024, answer_budget=64, generator=rng(0))
    assert [len(number) for number in case.numbers] == [6, 6, 6, 6]
    assert len(case.prompt_ids) + 64 == 1024


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


def test_depth_is_where_the_needle_stands(bytewise):
    # one token a byte: places in the decoded text are places in tokens
    case = make_case(bytewise, HAYSTACK, 2000, BUDGET, rng(4))
    body = bytewise.decode(case.prompt_ids)[len(TASK) : -len(QUESTION)]
    needles = [f" One of the magic numbers is {number}." for number in case.numbers]
    n_hay = len(body) - sum(map(len, needles))
    for k, needle in enumerate(needles):
        before = body.index(needle) - sum(map(len, needles[:k]))
        assert case.depths[k] == pytest.approx(before / n_hay, abs=1e-12)


def test_needles_stand_between_words(bytewise):
    for test in range(20):
        case = make_case(bytewise, HAYSTACK, 1500, BUDGET, rng(5, test))
        body = bytewise.decode(case.prompt_ids)[len(TASK) : -len(QUESTION)]
        for number in case.numbers:
            begin = body.index(f" One of the magic numbers is {number}.")
            end = begin + len(f" One of the magic numbers is {number}.")
            assert begin == 0 or body[begin - 1].isspace() or body[end].isspace()


def test_a_tokenizer_without_special_tokens_has_the_words_in_order(words):
    case = make_case(words, HAYSTACK, 600, BUDGET, rng(6))
    tokens = [words.id_to_token(index) for index in case.prompt_ids]
    assert tokens[:3] == ["There", "is", "an"]
    assert tokens[-3:] == ["The", "numbers", "are"]
    assert sum(tokens[k : k + 3] == ["One", "of", "the"] for k in range(len(tokens))) == 4


@pytest.mark.parametrize("haystack", ["a", "ab cd", "short text. ", "x " * 5], ids=["letter", "two", "text", "letters"])
def test_a_short_haystack_goes_round(bytewise, haystack):
    case = make_case(bytewise, haystack, 1200, BUDGET, rng(7))
    assert len(case.prompt_ids) + BUDGET == 1200
    body = re.sub(r" One of the magic numbers is [0-9]+\.", "", bytewise.decode(case.prompt_ids))
    assert set(body[len(TASK) : -len(QUESTION)].split()) <= set((haystack + " ").split()) | {
        word[:k] for word in haystack.split() for k in range(len(word))
    }


def test_haystack_begins_at_a_random_word(bytewise):
    firsts = set()
    for test in range(30):
        case = make_case(bytewise, HAYSTACK, 900, BUDGET, rng(8, test))
        text = bytewise.decode(case.prompt_ids)[len(TASK) :]
        text = re.sub(r" One of the magic numbers is [0-9]+\.", "", text)
        assert HAYSTACK.startswith(text[:12]) or f" {text[:12]}" in f"{HAYSTACK} {HAYSTACK}"
        firsts.add(text[:40])
    assert len(firsts) > 20


@pytest.mark.parametrize("haystack", ["", " ", "\n\t \n"], ids=["empty", "space", "lines"])
def test_an_empty_haystack_is_refused(bpe, haystack):
    with pytest.raises(DataError) as caught:
        make_case(bpe, haystack, 1024, BUDGET, rng(9))
    assert str(caught.value) == "haystack: empty; give a text file with words in it"


def test_a_length_without_room_is_refused_and_the_least_named_works(tokenizer):
    least = shortest(tokenizer)
    for length in (0, 1, BUDGET, least - 1):
        with pytest.raises(DataError) as caught:
            make_case(tokenizer, HAYSTACK, length, BUDGET, rng(10))
        message = str(caught.value)
        assert message.startswith(f"length={length}: too short for the needle test; task, 4 needles, question and")
        assert message.endswith(f"take {least - 4} tokens, so use {least} or more")
        assert "\n" not in message
    assert len(make_case(tokenizer, HAYSTACK, least, BUDGET, rng(10)).prompt_ids) + BUDGET == least


def test_a_case_is_a_function_of_its_generator(bpe):
    first, again, other = (make_case(bpe, HAYSTACK, 512, BUDGET, rng(seed)) for seed in (11, 11, 12))
    assert first == again
    assert first.prompt_hash == again.prompt_hash != other.prompt_hash
    assert re.fullmatch("[0-9a-f]{16}", first.prompt_hash)


@pytest.mark.parametrize(
    ("text", "numbers", "count"),
    [
        pytest.param("The numbers are 12, 34 and 56.", ["12", "34", "56"], 3, id="all"),
        pytest.param("56 34 12", ["12", "34", "56"], 3, id="any_order"),
        pytest.param("12 12 12", ["12", "34"], 1, id="repeats_count_once"),
        pytest.param("123", ["12", "23"], 0, id="inside_a_longer_number"),
        pytest.param("0012 1200", ["12"], 0, id="zeros_around"),
        pytest.param("012 12", ["12"], 1, id="once_whole_once_inside"),
        pytest.param("a12b", ["12"], 1, id="beside_letters"),
        pytest.param("-12.", ["12"], 1, id="beside_signs"),
        pytest.param("144231144232", ["144231", "144232"], 0, id="glued"),
        pytest.param("144,231", ["144231"], 0, id="grouped_digits_are_two_numbers"),
        pytest.param("1 4 4 2 3 1", ["144231"], 0, id="spaced_digits"),
        pytest.param("", ["12"], 0, id="nothing"),
        pytest.param("12", ["12"], 1, id="alone"),
        pytest.param("12\n34", ["12", "34"], 2, id="lines"),
        pytest.param("12", [], 0, id="none_asked"),
    ],
)
def test_only_whole_numbers_are_found(text, numbers, count):
    assert found(text, numbers) == count
