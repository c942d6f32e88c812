"""Tasks of one's own: what defines them, intervals of their scores, and those that cannot be run."""

import json
import os

import pytest
from scipy.stats import binom

from eval.harness.__main__ import interval, main
from tests.eval.harness.parts import TASKS

pytest.importorskip("lm_eval")
CODE_SWITCH = "HF_ALLOW_CODE_EVAL"
pytestmark = pytest.mark.usefixtures("harness_files")


def test_programs_run_where_that_is_confirmed(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(CODE_SWITCH, "0")  # to be as it was afterwards
    words = [str(run_folder), "--tasks=lab_program", f"--include_path={TASKS}", "--limit=1", "-o", str(tmp_path)]
    assert main(words) == 2
    assert "--tasks=lab_program: Attempted to run task: lab_program which is marked as" in capsys.readouterr().err
    assert os.environ[CODE_SWITCH] == "0"
    assert main([*words, "--confirm_run_unsafe_code"]) == 0
    assert os.environ[CODE_SWITCH] == "1"


def test_shares_have_exact_limits():
    """Three of ten, by the tails of the binomial distribution; the example of `interval` has limits by t."""
    found = interval(0.3, [1.0] * 3 + [0.0] * 7, 0.1527, 10)
    tails = binom.sf(2, 10, found["low"]), binom.cdf(3, 10, found["high"])
    assert (tails, found["interval"]) == (pytest.approx((0.025, 0.025)), "exact")
    for score, each in ((0.4, [0.0, 1.0]), (0.5, [[0.0, 1.0]]), (0.5, [])):  # not their mean, pairs, a group
        assert interval(score, each, None, 2)["low"] is None


def test_a_task_whose_documents_or_scores_changed_is_recorded_again(run_folder, tmp_path):
    rows = (TASKS / "choice.jsonl").read_text().splitlines(keepends=True)
    text = (TASKS / "choice.yaml").read_text()
    (tmp_path / "choice.yaml").write_text(text.replace("tests/eval/harness_tasks/choice.jsonl", f"{tmp_path}/d.jsonl"))
    words = [str(run_folder), "--tasks=lab_choice", f"--include_path={tmp_path}", "-o", str(tmp_path / "out")]
    file = tmp_path / "out/harness.jsonl"
    for n_rows in (4, 4, 6):
        (tmp_path / "d.jsonl").write_text("".join(rows[:n_rows]))
        assert main(words) == 0
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["n"] for row in found if row["metric"] == "acc"] == [4, 6]
    file.write_text("".join(json.dumps({**row, "score": -1.0}) + "\n" for row in found))
    assert main(words) == 0
    again = [json.loads(line) for line in file.read_text().splitlines()][len(found) :]
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in found[2:]]
