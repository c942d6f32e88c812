"""Prompts are as long as they may be, functions of their seeds, refused where they cannot be, and scored."""

import re

import pytest

from eval.engine.cases import NOISE, Writer
from eval.ruler.tasks import ALL
from lab.core.errors import LabError
from tests.eval.answering import answered
from tests.eval.ruler.conftest import MARKS, case_of
from tests.eval.ruler.oracle import documents, listed, oracle, solve

WHOLE = [task for task in ALL if task.category == "retrieval" or task.name == "vt"]  # haystacks of lines or words


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
@pytest.mark.parametrize("length", [1399, 2500])
def test_a_prompt_fills_its_length(writer, made_up, task, length):
    for index in range(2):
        case = case_of(writer, made_up, task.name, length, index, 0)
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
            units = len({*listed(case.prompt)}) - 10 if task.name == "cwe" else len(documents(case.prompt))
            assert draft.compose(units).translate(MARKS) == case.prompt
            assert len(case.prompt_ids) <= room < writer.count(draft.compose(units + 1))


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_the_least_length_named_is_the_least(writer, made_up, task):
    least = task.least_length(writer, made_up, [task.turn(256, task.budget, 5, index) for index in range(6)])
    cases = [case_of(writer, made_up, task.name, least, index, 5) for index in range(6)]
    assert max(len(case.prompt_ids) for case in cases) == least - task.budget
    assert all(sorted(solve(case.prompt)) == sorted(case.answers) for case in cases)
    with pytest.raises(LabError) as caught:
        [case_of(writer, made_up, task.name, least - 1, index, 5) for index in range(6)]
    assert str(caught.value).startswith(
        f"--lengths={least - 1}: too short for {task.name} with its answer; use {least}"
    )


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_a_test_has_the_same_answers_at_every_length(merging, made_up, task):
    writer = Writer(merging)
    assert len({case_of(writer, made_up, task.name, length, 2, 1).answers for length in (1400, 2500)}) == 1


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_an_oracle_scores_1_and_babble_0(bpe, made_up, task, tmp_path):
    writer = Writer(bpe)
    budget = 1 + max(task.budget, task.least_budget(writer, made_up))
    cases = [case_of(writer, made_up, task.name, 1700, index, 7, budget) for index in range(5)]
    settings = {"budget": budget, "rows": 3, "stop_id": 1, "judge": task.score_answer}
    reader = oracle(bpe, 1)
    records = answered(reader, bpe, cases, tmp_path / "oracle", **settings).records
    assert [(record["test"], record["score"]) for record in records] == [(k, 1.0) for k in range(5)]
    assert [record["prompt_hash"] for record in records] == [case.prompt_hash for case in cases]
    assert [record["expected"] for record in records] == [list(case.answers) for case in cases]
    assert reader.prompts == 5
    babble = oracle(bpe, 1, answer=lambda prompt: ["babble", "gaga", "0", "00000", "lala"])
    assert {record["score"] for record in answered(babble, bpe, cases, tmp_path / "babble", **settings).records} == {0}
