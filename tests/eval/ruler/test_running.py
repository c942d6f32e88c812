"""Cases put to a model: an oracle scores 100 in every task, and babble scores 0."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import eval.engine.answers
from eval.engine.answers import Outcome
from eval.engine.cases import Writer
from eval.engine.rows import Results
from eval.ruler.metrics import summed
from eval.ruler.sources import Sources
from eval.ruler.tasks import ALL, TASKS, least_budget, make_case
from lab.probe.answering import side_by_side
from lab.probe.needles import Case
from tests.eval.answering import answered
from tests.eval.ruler.oracle import Oracle, solve

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


def test_what_is_finished_is_not_run_again(bpe, made_up, tmp_path, monkeypatch):
    writer, task, oracle = Writer(bpe), TASKS["vt"], Oracle(bpe, STOP)
    started = Results(tmp_path / "vt.jsonl", ("test",))

    def crash(prompts, n_tokens):
        if len(oracle.calls) == 2:
            raise MemoryError
        return oracle(prompts, n_tokens)

    with pytest.raises(MemoryError):
        run(crash, writer, made_up, task, rows=1, started=started)
    with started.path.open("a") as file:
        file.write('{"test": 2, "sco')  # as a crash in the middle of writing leaves it
    again = Results(tmp_path / "vt.jsonl", ("test",))
    assert [row["test"] for row in again] == [0, 1]
    clock = iter([10.0, 13.0])
    monkeypatch.setattr(eval.engine.answers, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    _, outcome = run(oracle, writer, made_up, task, rows=1, started=again)
    assert len(oracle.calls) == 5
    assert outcome.seconds == 5.0  # three tests took 3 seconds
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert outcome.records == run(Oracle(bpe, STOP), writer, made_up, task)[1].records
    assert run(crash, writer, made_up, task, started=Results(tmp_path / "vt.jsonl", ("test",)))[1].seconds is None


def test_half_an_answer_scores_half_and_one_of_several_answers_is_enough(bpe, made_up, squad, hotpotqa):
    half = Oracle(bpe, STOP, answer=lambda prompt: solve(prompt)[::2])
    assert score_of(half, Writer(bpe), made_up, TASKS["niah_multiquery"]) == pytest.approx(50.0)
    assert score_of(half, Writer(bpe), made_up, TASKS["vt"]) == pytest.approx(60.0)
    shade = Oracle(
        bpe, STOP, answer=lambda p: ["shade{1}x{0}".format(*re.findall(r"paragraph (\d) of article (\d+)\?", p)[0])]
    )
    assert score_of(shade, Writer(bpe), Sources.read(None, str(squad), str(hotpotqa)), TASKS["qa_1"]) == 100.0


def test_what_follows_the_end_of_the_document_does_not_count(bpe, made_up):
    oracle, said = Oracle(bpe, STOP), []

    def late(prompts, n_tokens):
        answers = oracle(prompts, n_tokens)
        said.append(answers)
        return torch.cat([torch.full((len(prompts), 1), STOP), answers], dim=1)[:, :n_tokens]

    assert score_of(late, Writer(bpe), made_up, TASKS["niah_single_1"]) == 0.0
    assert sum(map(len, said)) == 5


def test_prompts_of_one_length_run_side_by_side_and_all_run_once():
    lengths = [5, 7, 5, 5, 6, 7, 5, 7, 7, 5]
    cases = [(k, Case([0] * n)) for k, n in enumerate(lengths)]
    found = list(side_by_side(iter(cases), 3))
    assert [[index for index, _ in group] for group in found] == [[0, 2, 3], [1, 5, 7], [4], [6, 9], [8]]


def test_an_outcome_by_hand():
    # scores 1, 1, 0, 0.5: mean 0.625, deviations .375 .375 -.625 -.125, squares sum to 0.6875, std sqrt(0.6875 / 3)
    records = [{"score": s, "prompt_tokens": t} for s, t in ((1.0, 9), (1.0, 7), (0.0, 8), (0.5, 8))]
    row = summed(Outcome(records))
    assert (row["score"], row["std"], row["shortest_prompt"]) == (62.5, pytest.approx(100 * (0.6875 / 3) ** 0.5), 7)
    assert 0 < row["low"] < 62.5 < row["high"] < 100
    assert summed(Outcome(records[:1]))["std"] is None
    shown = summed(Outcome([{**r, "example": k < 3, "made_up_words": k} for k, r in enumerate(records)]))
    assert (shown["shortest_prompt"], shown["examples"], shown["made_up_words"]) == (7, 3, 6)
