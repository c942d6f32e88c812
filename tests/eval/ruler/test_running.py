"""Cases put to a model: an oracle scores 100 in every task, and babble scores 0."""

from pathlib import Path

import pytest

from eval.engine.answers import Outcome
from eval.engine.cases import Writer
from eval.ruler.scores import summed
from eval.ruler.tasks import ALL, least_budget, make_case
from tests.eval.answering import answered
from tests.eval.ruler.oracle import Oracle

STOP = 1  # <eos>


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(model, writer, sources, task, length=1700, n=5, rows=3, started=None):
    budget = 1 + max(task.budget, least_budget(writer, sources, task))
    cases = [make_case(writer, sources, task, length, 7, index, budget=budget) for index in range(n)]
    settings = {"budget": budget, "rows": rows, "stop_id": STOP, "judge": task.judge, "started": started}
    return cases, answered(model, writer.tokenizer, cases, Path.cwd(), **settings)


def score_of(*words, **settings):
    return summed(run(*words, **settings)[1])["score"]


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_an_oracle_scores_100_and_babble_0(bpe, made_up, task):
    writer = Writer(bpe)
    oracle = Oracle(bpe, STOP)
    cases, outcome = run(oracle, writer, made_up, task)
    assert summed(outcome)["score"] == 100.0
    assert [record["prompt_hash"] for record in outcome.records] == [case.prompt_hash for case in cases]
    assert [record["expected"] for record in outcome.records] == [list(case.answers) for case in cases]
    assert [record["test"] for record in outcome.records] == [0, 1, 2, 3, 4]
    assert sum(rows for rows, _ in oracle.calls) == 5
    babble = Oracle(bpe, STOP, answer=lambda prompt: ["babble", "gaga", "0", "00000", "lala"])
    assert score_of(babble, writer, made_up, task) == 0.0


def test_an_outcome_by_hand():
    # scores 1, 1, 0, 0.5: mean 0.625, deviations .375 .375 -.625 -.125, squares sum to 0.6875, std sqrt(0.6875 / 3)
    records = [{"score": s, "prompt_tokens": t} for s, t in ((1.0, 9), (1.0, 7), (0.0, 8), (0.5, 8))]
    row = summed(Outcome(records))
    assert (row["score"], row["std"], row["shortest_prompt"]) == (62.5, pytest.approx(100 * (0.6875 / 3) ** 0.5), 7)
    assert 0 < row["low"] < 62.5 < row["high"] < 100
    assert summed(Outcome(records[:1]))["std"] is None
    shown = summed(Outcome([{**r, "example": k < 3, "made_up_words": k} for k, r in enumerate(records)]))
    assert (shown["shortest_prompt"], shown["examples"], shown["made_up_words"]) == (7, 3, 6)
