"""Tasks of one's own: what defines them, intervals of their scores, and those that cannot be run."""

import json
import os

import numpy as np
import pytest
from scipy.stats import binom
from scipy.stats import t as student

from eval.harness.__main__ import interval, main
from eval.harness.tasks import CODE_SWITCH, entries, load_tasks, task_manager
from lab.errors import LabError
from tests.eval.harness.parts import TASKS

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.usefixtures("harness_files")


def write_task(folder, name, **settings):
    """Write a task with a row of its own; settings that begin with ! are functions."""
    (folder / f"{name}.jsonl").write_text('{"text": "Say"}\n')
    task = {"task": name, "dataset_path": "json", "test_split": "test", "output_type": "generate_until"}
    task |= {"doc_to_text": "{{text}}", "doc_to_target": "{{text}}", "generation_kwargs": {"max_gen_toks": 4}}
    task |= {"dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}, **settings}
    lines = [f"{key}: {v if str(v).startswith('!') else json.dumps(v)}" for key, v in task.items()]
    (folder / f"{name}.yaml").write_text("\n".join(lines))


def test_programs_run_where_that_is_confirmed(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(CODE_SWITCH, "0")  # to be as it was afterwards
    words = [
        str(run_folder),
        "--tasks=lab_program",
        f"--include_path={TASKS}",
        "--run_own_code",
        "--limit=1",
        "-o",
        str(tmp_path),
    ]
    assert main(words) == 2
    assert "--tasks=lab_program: runs programs that the model writes; " in capsys.readouterr().err
    assert os.environ[CODE_SWITCH] == "0"
    assert main([*words, "--confirm_run_unsafe_code"]) == 0
    assert os.environ[CODE_SWITCH] == "1"


def test_other_means_have_the_t_interval():
    values = [0.2, 0.9, 0.4, 0.5]
    stderr = np.std(values, ddof=1) / 2
    half = student.ppf(0.975, 3) * stderr
    found = interval(0.5, values, stderr, 4)
    limits = (pytest.approx(0.5 - half), pytest.approx(0.5 + half), "t")
    assert (found["low"], found["high"], found["interval"]) == limits


def test_shares_have_exact_limits():
    """Three of ten, by the tails of the binomial distribution: each limit leaves 2.5% beyond what was seen."""
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


BROKEN = {
    "no_data": ({"dataset_kwargs": {"data_files": {"test": "none.jsonl"}}}, "FileNotFoundError"),
    "no_package": ({"process_docs": "!function needs.docs"}, "ModuleNotFoundError"),
    "no_function": ({"process_docs": "!function lacks.docs"}, "AttributeError"),
    "no_field": ({"doc_to_text": "{{missing}}"}, "UndefinedError"),
    "no_output": ({"output_type": "thoughts"}, ""),
}


def test_every_task_that_cannot_be_loaded_is_a_line(run_folder, tmp_path, capsys):
    (tmp_path / "needs.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "lacks.py").write_text("")
    for name, (settings, _) in BROKEN.items():
        write_task(tmp_path, name, **settings)
    (tmp_path / "choice.yaml").write_text((TASKS / "choice.yaml").read_text())
    names = ["lab_choice", *BROKEN]
    words = [
        str(run_folder),
        f"--tasks={','.join(names)}",
        f"--include_path={tmp_path}",
        "--run_own_code",
        "-o",
        str(tmp_path / "out"),
    ]
    assert main(words) == 2
    *lines, rest = [line for line in capsys.readouterr().err.splitlines() if "--tasks=" in line]
    assert rest == "3 more: " + ", ".join(f"--tasks={name}" for name in list(BROKEN)[2:])
    for line, (name, (_, kind)) in zip(lines, list(BROKEN.items())[:2], strict=True):
        assert line.startswith(f"--tasks={name}: the harness cannot run it ({kind}")
        assert "; check" in line
    assert not (tmp_path / "out/harness.jsonl").exists()  # nothing was run before all was known to load


def test_too_many_examples_are_a_line(run_folder, tmp_path, capsys):
    words = ["--tasks=lab_steps", f"--include_path={TASKS}", "--run_own_code", "--num_fewshot=500", "-o", str(tmp_path)]
    assert main([str(run_folder), *words]) == 2
    assert "--tasks=lab_steps: the harness cannot run it (" in capsys.readouterr().err


def test_a_task_s_own_faults_are_not_hidden(run_folder, tmp_path):
    """Once the model has answered, an error is that of a function, and its traceback points to it."""
    (tmp_path / "scoring.py").write_text("def score(doc, results):\n    raise ValueError('the third line')\n")
    write_task(tmp_path, "own", process_results="!function scoring.score")
    with pytest.raises(ValueError, match="the third line") as raised:
        main(
            [
                str(run_folder),
                "--tasks=own",
                f"--include_path={tmp_path}",
                "--run_own_code",
                "-o",
                str(tmp_path / "out"),
            ]
        )
    assert not isinstance(raised.value, LabError)


def test_unsafe_tasks_are_found_in_groups_and_tags(tmp_path):
    for name, settings in {
        "one": {"task": "one", "unsafe_code": True, "tag": "some"},
        "all": {"group": "all", "task": ["inner", "two"]},
        "inner": {"group": "inner", "task": ["one"]},
    }.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(settings))
    manager = task_manager(["one"], str(tmp_path), run_own_code=False)
    assert [entry and entry.name for entry in entries(manager, "all")] == ["all", "inner", "one", None]
    for name in ("one", "all", "inner", "some"):
        with pytest.raises(LabError, match=f"--tasks={name}: runs programs"):
            load_tasks(manager, [name], run_unsafe_code=False)


CODE = {
    "function": "process_docs: !function scoring.docs\n",
    "python": "a: !!python/object/apply:os.mkdir [{ran}]\n",
    "by_another_name": "%TAG !x! !func\n---\nprocess_docs: !x!tion scoring.docs\n",
    "included": "include: ../elsewhere.yaml\n",
    "included_by_an_alias": "x: &x include\n*x : ../elsewhere\n",
}


@pytest.mark.parametrize("text", CODE.values(), ids=CODE)
def test_code_of_a_task_folder_runs_where_that_is_confirmed_alone(tmp_path, text):
    folder, ran = tmp_path / "tasks", tmp_path / "ran"
    folder.mkdir()
    (folder / "scoring.py").write_text(f"open({str(ran)!r}, 'w')")
    for name in ("elsewhere", "elsewhere.yaml"):
        (tmp_path / name).write_text(CODE["function"])
    (folder / "own.yaml").write_text(text.format(ran=ran))
    with pytest.raises(LabError, match="^--include_path=.*: .* names Python code .*; .* --run_own_code$"):
        task_manager(["own"], str(folder), run_own_code=False)
    assert not ran.exists()
