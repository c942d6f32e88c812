"""Prompts are as long as they may be, functions of their seeds, and refused where they cannot be."""

import re

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from eval.engine.cases import Turn, Writer, fit
from eval.engine.words import NOISE
from eval.ruler.sources import Sources
from eval.ruler.tasks import ALL, TASKS, least_budget, least_length, make_case
from lab.errors import DataError, LabError
from tests.eval.ruler.oracle import solve

WHOLE = [task for task in ALL if task.category == "retrieval" or task.name == "vt"]  # haystacks of lines or words


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
@pytest.mark.parametrize("length", [1399, 2500])
def test_a_prompt_fills_its_length(writer, made_up, task, length):
    for index in range(2):
        case = make_case(writer, made_up, task, length, 0, index)
        room = length - task.budget
        assert case.prompt_ids.tolist() == writer.tokenizer.encode(case.prompt).ids
        if task in WHOLE:
            lines = [NOISE] if task.name in ("niah_single_1", "vt") else re.findall(r"One of.*?: \S+\.", case.prompt)
            unit = "understandings" if task.source else max(lines, key=len)  # of essays, a word
            assert room - writer.count(f" {unit}\n") - 3 < len(case.prompt_ids) <= room
        elif task.name == "fwe":
            assert room - writer.count(" ...") < len(case.prompt_ids) <= room
        else:
            turn = task.turn(length, task.budget, 0, index)
            draft = task.draft(writer, made_up, turn)
            units = case.facts["words"] - 10 if task.name == "cwe" else case.facts["documents"]
            assert draft.compose(units) == case.prompt
            assert len(case.prompt_ids) <= room < writer.count(draft.compose(units + 1))


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_the_least_length_named_is_the_least(writer, made_up, task):
    least = least_length(writer, made_up, task, 256, 5, 6)
    cases = [make_case(writer, made_up, task, least, 5, index) for index in range(6)]
    assert max(len(case.prompt_ids) for case in cases) == least - task.budget
    assert all(sorted(solve(case.prompt)) == sorted(case.answers) for case in cases)
    with pytest.raises(LabError) as caught:
        [make_case(writer, made_up, task, least - 1, 5, index) for index in range(6)]
    message = str(caught.value)
    assert re.fullmatch(
        rf"--lengths={least - 1}: too short for {task.name}, whose fixed parts take {least - task.budget} tokens and "
        rf"the answer {task.budget}; use {least} or more, or leave the task out",
        message,
    )


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_a_case_is_a_function_of_seed_and_index(merging, made_up, task):
    writer = Writer(merging)
    first, again, other, reseeded = (
        make_case(writer, made_up, task, 1600, seed, index) for seed, index in ((1, 2), (1, 2), (1, 3), (2, 2))
    )
    assert first.prompt == again.prompt
    assert first.prompt_hash == again.prompt_hash
    assert first.facts == again.facts
    assert len({case.prompt for case in (first, other, reseeded)}) == 3
    assert len({case.answers for case in (first, other, reseeded)}) == 3


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_a_test_has_the_same_answers_at_every_length(merging, made_up, task):
    writer = Writer(merging)
    assert len({make_case(writer, made_up, task, length, 1, 2).answers for length in (1400, 2500)}) == 1


def test_tasks_draw_different_things(merging, made_up):
    writer = Writer(merging)
    names = ("niah_single_1", "niah_single_2", "niah_multikey_2")
    assert len({make_case(writer, made_up, TASKS[name], 1500, 0, 0).answers for name in names}) == 3


@pytest.mark.parametrize("seed", range(30))
def test_fit_finds_what_trying_all_finds(seed):
    rng = np.random.default_rng(seed)
    costs = np.cumsum(rng.integers(0, int(rng.integers(2, 60)), 9000)) + 7
    room = int(rng.integers(7 + costs[0], costs[3900]))
    most = [None, 4000][seed % 2]
    found = fit(lambda n: int(costs[n]), room, 0, most)
    best = max(n for n in range(len(costs)) if costs[n] <= room)
    assert costs[found] == costs[best]


def test_fit_stops_at_the_end_of_its_source():
    for most in (0, 1, 7, 16, 17, 40):
        assert fit(lambda n: 3 * n, 1000, 0, most) == most


def test_text_that_takes_no_tokens_is_refused():
    with pytest.raises(
        DataError, match=r"^tokenizer.json: text takes no tokens in it; give the model's own tokenizer$"
    ):
        fit(lambda n: 5, 100, 0)


def test_special_tokens_begin_a_prompt_and_do_not_end_it(bpe, made_up):
    tokenizer = Tokenizer.from_str(bpe.to_str())
    ends = [(name, bpe.token_to_id(name)) for name in ("<bos>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=ends)
    tokenizer.enable_truncation(100)
    tokenizer.enable_padding(length=3000)
    case, plain = (make_case(Writer(t), made_up, TASKS["vt"], 1500, 0, 0) for t in (tokenizer, bpe))
    assert case.prompt_ids.tolist() == plain.prompt_ids.tolist()
    assert case.prompt_ids[0] == ends[0][1]
    assert tokenizer.truncation is not None, "the caller's own is left as it was"


def test_a_tokenizer_that_sets_digits_apart_is_refused(merging, made_up):
    tokenizer = Tokenizer.from_str(merging.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    make_case(Writer(tokenizer), made_up, TASKS["niah_single_1"], 1500, 0, 0)  # digits alone are no fault
    words = {"?": 0, **{str(digit): digit + 1 for digit in range(10)}}
    apart = Tokenizer(models.WordLevel(words, unk_token="?"))
    apart.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True)])
    with pytest.raises(DataError) as caught:
        make_case(Writer(apart), made_up, TASKS["niah_single_1"], 1500, 0, 0)
    assert re.fullmatch(
        r"tokenizer.json: reads '\d{7}' back as '[^']*(\d ){6}\d', so that no answer could pass; give the model's "
        "own tokenizer",
        str(caught.value),
    )


def test_an_answer_has_room_in_what_is_left_for_it(writer, made_up):
    for task in ALL[:11]:
        needed = least_budget(writer, made_up, task)
        for index in range(0, 32, 4):
            answers = task.draft(writer, made_up, Turn(2000, 0, 0, index, task.turn(0, 0, 0, index).rng)).answers
            assert len(writer.tokenizer.encode(" " + ", ".join(answers), add_special_tokens=False).ids) <= needed
        assert needed > 2 * len(answers)


@pytest.mark.parametrize("name", ["niah_single_2", "niah_multiquery"])
def test_a_haystack_too_short_is_one_line(merging, tmp_path, name):
    path = tmp_path / "short.txt"
    path.write_text("Only a few words. They will not do.\n")
    sources = Sources.read(str(path), None, None)
    with pytest.raises(DataError) as caught:
        make_case(Writer(merging), sources, TASKS[name], 2000, 0, 0)
    line = f"--haystack={path}: 8 words are too short a haystack for length=2000; give a longer text"
    assert str(caught.value) == line


@pytest.mark.parametrize(("name", "n"), [("qa_1", 60), ("qa_2", 150)])
def test_too_few_documents_are_one_line(merging, squad, hotpotqa, name, n):
    sources = Sources.read(None, str(squad), str(hotpotqa))
    path = {"qa_1": f"--squad={squad}", "qa_2": f"--hotpotqa={hotpotqa}"}[name]
    with pytest.raises(DataError) as caught:
        make_case(Writer(merging), sources, TASKS[name], 30_000, 0, 0)
    line = f"{path}: {n} documents are too short a haystack for length=30000; give a larger file"
    assert str(caught.value) == line


def test_essays_are_read_from_their_beginning_and_never_repeat(merging, essays):
    sources = Sources.read(str(essays), None, None)
    for index in range(8):
        prompt = make_case(Writer(merging), sources, TASKS["niah_single_2"], 3000, 0, index).prompt
        numbers = re.findall(r"sentence (\d+) of part (\d)", prompt)
        assert len(set(numbers)) == len(numbers) > 30
        assert numbers[0] == ("0", "0")
