"""The command from end to end, on small models as they lie on disk."""

import json
import shutil

import pytest

import eval.ruler.__main__ as command
from eval.engine.subject import Subject
from lab.loading import open_model
from lab.runs.checkpoints import folder_name
from tests.eval.commands import rows_named, runner
from tests.eval.ruler.oracle import oracle, solve
from tests.opened import save_weights

QUICK = ["--tests=3", "--answer_budget=40"]


run = runner(command.main)
rows_of = rows_named("ruler.jsonl")


@pytest.fixture
def solved(monkeypatch):
    """Let an oracle answer in place of the model, with half of the answers after 8,192 tokens."""

    def generate(subject, prompts, n_tokens):
        def answer(prompt):
            right = solve(prompt)
            return right if subject.model.consumed_tokens == 8192 else right[: len(right) // 2]

        return oracle(subject.tokenizer, subject.stop_id, answer)(prompts, n_tokens)

    monkeypatch.setattr(Subject, "generate", generate)


def test_the_command_measures_a_run(run_folder, tmp_path, capsys):
    words = [run_folder, *QUICK, "--tasks=vt,niah_multivalue,qa_1", "--lengths=700,512", "--seed=5", "-o", tmp_path]
    status, out, _ = run(words, capsys)
    assert status == 0
    rows = rows_of(tmp_path)
    cells = [(length, task) for length in (512, 700) for task in ("niah_multivalue", "vt", "qa_1")]
    assert [(row["length"], row["task"]) for row in rows] == cells
    for row in rows:
        assert (row["protocol"], row["checkpoint"], row["consumed_tokens"]) == ("ruler", folder_name(4096), 4096)
        assert (row["n"], row["seed"], row["answer_budget"], row["version"]) == (3, 5, 40, 2)
        assert 0 <= row["low"] <= row["score"] <= row["high"] <= 100
        assert row["standins"] == {"niah_multivalue": ["essays"], "vt": [], "qa_1": ["squad"]}[row["task"]]
        cases = [json.loads(line) for line in (tmp_path / row["cases"]).read_text().splitlines()]
        assert [case["test"] for case in cases] == [0, 1, 2]
        assert row["score"] == pytest.approx(100 * sum(case["score"] for case in cases) / 3)
        assert all(case["prompt_tokens"] <= row["length"] - 40 for case in cases)
        assert all(case["expected"] and "answer" in case and len(case["prompt_hash"]) == 16 for case in cases)
    assert "stand-ins: made-up text in place of essays, squad" in out.splitlines()
    assert out.splitlines()[-1] == f"written to {tmp_path / 'ruler.jsonl'}"
    kept = json.loads((tmp_path / "ruler_summary.json").read_text())
    assert (kept["checkpoints"], kept["effective_length"]) == ([folder_name(4096)], 0)
    assert list(kept["averages"]) == ["512", "700"]


@pytest.mark.usefixtures("solved")
def test_scores_are_averaged_over_the_last_checkpoints(run_folder, tmp_path, capsys):
    run_copy = tmp_path / "tiny"
    shutil.copytree(run_folder, run_copy, ignore=shutil.ignore_patterns("eval", "ruler*"))
    for tokens in (8192, 12288, 16384):
        save_weights(run_copy / "checkpoints", open_model(run_folder).decoder, tokens, keep=5)
    words = [run_copy, "--tests=2", "--tasks=vt,niah_multiquery", "--lengths=800"]
    status, out, _ = run([*words, "--last=3"], capsys)
    assert status == 0
    rows = rows_of(run_copy)
    assert [row["checkpoint"] for row in rows[::2]] == [folder_name(tokens) for tokens in (16384, 12288, 8192)]
    by_task = {task: [row["score"] for row in rows if row["task"] == task] for task in ("vt", "niah_multiquery")}
    assert by_task == {"niah_multiquery": [50.0, 50.0, 100.0], "vt": [40.0, 40.0, 100.0]}
    assert out.startswith("tiny: rope+plain, 2 tests each, mean of 3 checkpoints\n")
    kept = json.loads((run_copy / "ruler_summary.json").read_text())
    assert kept["averages"]["800"]["average"] == pytest.approx((200 / 3 + 60) / 2)
    assert "keeps 4 checkpoints" in run([*words, "--last=5"], capsys)[2]
    (run_copy / "checkpoints" / folder_name(8192) / "state.ckpt").write_bytes(b"broken")
    assert "state.ckpt: has 6 bytes" in run([*words, "--last=4"], capsys)[2]
