"""The command from end to end, on small models as they lie on disk."""

import itertools
import shutil

import pytest

import eval.ruler.__main__ as command
from eval.engine.subject import Subject
from lab.loading import open_model
from lab.runs.checkpoints import folder_name
from tests.eval.answering import Reader
from tests.eval.commands import lines_of, runner
from tests.eval.ruler.oracle import solve
from tests.opened import save_weights

run = runner(command.main)


@pytest.fixture
def solved(monkeypatch):
    """Let an oracle answer in place of the model, with half of the answers after 8,192 tokens."""

    def generate(subject, prompts, n_tokens):
        def say(prompt):
            right = solve(prompt)
            return " " + ", ".join(right if subject.model.consumed_tokens == 8192 else right[: len(right) // 2])

        return Reader(subject.tokenizer, 10**6, say, subject.stop_id)(prompts, n_tokens)

    monkeypatch.setattr(Subject, "generate", generate)


@pytest.mark.usefixtures("solved")
def test_scores_are_averaged_over_the_last_checkpoints(run_folder, tmp_path, capsys, squad):
    run_copy = tmp_path / "tiny"
    shutil.copytree(run_folder, run_copy, ignore=shutil.ignore_patterns("eval", "ruler*"))
    for tokens in (8192, 12288, 16384):
        save_weights(run_copy / "checkpoints", open_model(run_folder).decoder, tokens, keep=5)
    words = [run_copy, "--tests=2", "--tasks=vt,niah_multiquery,qa_1", "--lengths=900,800", f"--squad={squad}"]
    status, out, _ = run([*words, "--last=3"], capsys)
    assert status == 0
    rows, tests = lines_of(run_copy / "eval", "ruler"), lines_of(run_copy / "eval", "ruler", tests=True)
    checkpoints, tasks = [folder_name(tokens) for tokens in (16384, 12288, 8192)], ("niah_multiquery", "vt", "qa_1")
    cells = [(row["checkpoint"], row["length"], row["task"]) for row in rows]
    assert cells == [*itertools.product(checkpoints, (800, 900), tasks)]
    by_task = {task: [row["score"] for row in rows if (row["length"], row["task"]) == (800, task)] for task in tasks}
    assert by_task == {"niah_multiquery": [50.0, 50.0, 100.0], "vt": [40.0, 40.0, 100.0], "qa_1": [100.0, 100.0, 100.0]}
    for row in rows:
        assert (row["protocol"], row["version"], row["n"]) == ("ruler", 2, 2)
        assert row["standins"] == {"niah_multiquery": ["essays"], "vt": [], "qa_1": []}[row["task"]]
        cases = [test for test in tests if test["cell"] == row["cell"]]
        assert row["score"] == pytest.approx(100 * sum(case["score"] for case in cases) / 2)
        assert all(case["expected"] and case["prompt_tokens"] <= row["length"] - row["answer_budget"] for case in cases)
    assert out.startswith("tiny: rope+plain, 2 tests each, mean of 3 checkpoints\n")
    assert "stand-ins: made-up text in place of essays" in out.splitlines()
    average = next(line.split() for line in out.splitlines() if line.startswith("average"))
    assert (average[1], "effective length 0 at" in out) == (f"{(200 / 3 + 60 + 100) / 3:.1f}", True)
    assert "keeps 4 checkpoints" in run([*words, "--last=5"], capsys)[2]
    (run_copy / "checkpoints" / folder_name(8192) / "state.ckpt").write_bytes(b"broken")
    assert "state.ckpt: has 6 bytes" in run([*words, "--last=4"], capsys)[2]


@pytest.mark.usefixtures("solved")
def test_questions_without_their_files_are_not_asked(run_folder, tmp_path, capsys):
    status, out, err = run([run_folder, "--tests=1", "--lengths=2500", "-o", tmp_path / "out"], capsys)
    assert (status, len(lines_of(tmp_path / "out", "ruler"))) == (0, 11)
    assert "qa_1 (--squad) and qa_2 (--hotpotqa) not run: 11 tasks" in out + err
    status, _, err = run([run_folder, "--tests=1", "--tasks=qa_2"], capsys)
    assert (status, "tasks=qa_2: needs a file of questions; name it by --hotpotqa" in err) == (2, True)
