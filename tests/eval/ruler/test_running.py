"""Cases put to a model: an oracle scores 1 in every task, and babble scores 0."""

from pathlib import Path

import pytest

from eval.engine.cases import Writer
from eval.ruler.tasks import ALL
from tests.eval.answering import answered
from tests.eval.ruler.conftest import case_of
from tests.eval.ruler.oracle import Oracle

STOP = 1  # <eos>


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(model, writer, sources, task, n=5):
    budget = 1 + max(task.budget, task.least_budget(writer, sources))
    cases = [case_of(writer, sources, task.name, 1700, index, 7, budget) for index in range(n)]
    settings = {"budget": budget, "rows": 3, "stop_id": STOP, "judge": task.score_answer}
    return cases, answered(model, writer.tokenizer, cases, Path.cwd(), **settings).records


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_an_oracle_scores_1_and_babble_0(bpe, made_up, task):
    oracle = Oracle(bpe, STOP)
    cases, records = run(oracle, Writer(bpe), made_up, task)
    assert [record["score"] for record in records] == [1.0] * 5
    assert [record["prompt_hash"] for record in records] == [case.prompt_hash for case in cases]
    assert [record["expected"] for record in records] == [list(case.answers) for case in cases]
    assert [record["test"] for record in records] == [0, 1, 2, 3, 4]
    assert sum(rows for rows, _ in oracle.calls) == 5
    babble = Oracle(bpe, STOP, answer=lambda prompt: ["babble", "gaga", "0", "00000", "lala"])
    assert {record["score"] for record in run(babble, Writer(bpe), made_up, task)[1]} == {0.0}
