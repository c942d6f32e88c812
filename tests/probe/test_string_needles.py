import re

import numpy as np
import pytest

from lab.errors import DataError
from lab.probe.string_needles import found, make_case, shortest

TASK = (  # Table 5, white space included
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n\n "
)
QUESTION = "\n\n What are the magic numbers mentioned in the provided text?\n The numbers are"
NUMBERS = ["144231", "543171", "264468", "423103"]
NEEDLE = re.compile(r" One of the magic numbers is ([0-9]{6})\.")
SENTENCES = [f"Sentence {k} has some words in it." for k in range(400)]
HAYSTACK = " ".join(SENTENCES)
BUDGET = 24


def draw(tokenizer, length, *seed, haystack=HAYSTACK):
    return make_case(tokenizer, haystack, length, BUDGET, np.random.default_rng(seed), digits=6, needles=4)


@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_the_text_is_that_of_table_5(request, name):
    tokenizer = request.getfixturevalue(name)
    for test in range(8):
        case = draw(tokenizer, 1400, 1, test)
        text = tokenizer.decode(case.prompt_ids)
        assert text.startswith(TASK)
        assert text.endswith(QUESTION)
        assert NEEDLE.findall(text) == case.numbers == NUMBERS
        hay = NEEDLE.sub("", text[len(TASK) : -len(QUESTION)])
        assert HAYSTACK.startswith(hay), "from the beginning of the haystack"


@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_prompt_and_answer_have_exactly_the_length(request, name):
    tokenizer = request.getfixturevalue(name)
    for length in range(900, 1100, 7):
        assert {len(draw(tokenizer, length, test).prompt_ids) + BUDGET for test in range(3)} == {length}


def test_one_needle_stands_at_any_token_of_each_quarter_of_99_percent(bytewise):
    drawn, inside = [], 0
    for test in range(120):
        case = draw(bytewise, 1300, 2, test)
        body = bytewise.decode(case.prompt_ids)[len(TASK) - 1 : -len(QUESTION)]  # the blank goes with the haystack
        n_hay = len(NEEDLE.sub("", body))
        for k, (match, depth) in enumerate(zip(NEEDLE.finditer(body), case.depths, strict=True)):
            before = match.start() - k * len(match.group())
            assert depth == pytest.approx(before / n_hay, abs=1e-12)
            assert 0.99 * k / 4 - 1 / n_hay < depth < 0.99 * (k + 1) / 4
            inside += (
                body[match.start() - 1 : match.start()].isalpha() and body[match.end() : match.end() + 1].isalpha()
            )
        drawn.append(case.depths)
    assert inside > 60, "most places are inside a word"
    together = np.corrcoef(np.transpose(drawn)) - np.eye(4)
    assert np.abs(together).max() < 0.4, "needles stand independently: four standard deviations of 1 / sqrt(120)"
    width = 0.99 / 4  # uniform: mean in the middle, standard deviation w / sqrt(12 * 120) = w / 38
    for k, mean in enumerate(np.mean(drawn, axis=0)):
        assert abs(mean - (k + 0.5) * width) < width / 7


def test_tests_of_a_length_differ_in_their_depths_alone(bytewise):
    first, other = (NEEDLE.sub("", bytewise.decode(draw(bytewise, 1200, seed).prompt_ids)) for seed in (3, 4))
    assert first == other
    assert draw(bytewise, 1200, 3).depths != draw(bytewise, 1200, 4).depths
    assert draw(bytewise, 1200, 3) == draw(bytewise, 1200, 3)


@pytest.mark.parametrize("haystack", ["a", "ab. cd", "no stop at all "], ids=["letter", "stop", "words"])
def test_a_short_haystack_goes_round(bytewise, haystack):
    case = draw(bytewise, 1200, 5, haystack=haystack)
    assert len(case.prompt_ids) + BUDGET == 1200
    body = NEEDLE.sub("", bytewise.decode(case.prompt_ids)[len(TASK) - 1 : -len(QUESTION)])
    assert (f" {haystack}" * 900).startswith(body)


@pytest.mark.parametrize("name", ["bpe", "bytewise"])
def test_a_length_without_room_is_refused_and_the_least_named_works(request, name):
    tokenizer = request.getfixturevalue(name)
    least = shortest(tokenizer, BUDGET, digits=6, needles=4, seed=0)
    with pytest.raises(DataError) as caught:
        draw(tokenizer, least - 1, 6)
    assert str(caught.value) == (
        f"length={least - 1}: too short for the needle test; task, 4 needles, question and answer_budget={BUDGET} "
        f"take {least - 4} tokens, so use {least} or more"
    )
    assert len(draw(tokenizer, least, 6).prompt_ids) + BUDGET == least


@pytest.mark.parametrize("haystack", ["", " \n"], ids=["empty", "blank"])
def test_an_empty_haystack_is_refused(bpe, haystack):
    with pytest.raises(DataError, match="haystack: empty; give a text file with words in it"):
        draw(bpe, 1024, 7, haystack=haystack)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param(" 144231, 543171, 264468 and 423103.", 4, id="all"),
        pytest.param(" 423103 144231", 2, id="any_order"),
        pytest.param("9144231", 1, id="inside_a_longer_number"),
        pytest.param("144231543171", 2, id="glued"),
        pytest.param("144231 144231", 1, id="repeats_count_once"),
        pytest.param("14423", 0, id="cut"),
        pytest.param("", 0, id="nothing"),
    ],
)
def test_digits_count_wherever_they_stand(text, count):
    assert found(text, NUMBERS) == count
