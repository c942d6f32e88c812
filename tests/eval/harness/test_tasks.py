"""Tasks of LongBench, MMLU, HellaSwag, GSM8K, HumanEval and InfiniteBench: the harness's own files on a few rows of
their shape, answered from a script, with scores by hand; and one line where they cannot be run."""

import json
import os

import pytest
import torch

from eval.harness import model as harness
from eval.harness.__main__ import finished_requests, main
from eval.harness.options import HarnessOptions
from eval.harness.results import rows_of
from eval.harness.tasks import (
    CODE_SWITCH,
    definition,
    evaluate,
    is_complete,
    is_unsafe,
    load_tasks,
    running_code,
    task_manager,
)
from lab.errors import LabError
from tests.eval.harness.parts import TASKS, encoded, make_model, read_lines

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.usefixtures("harness_files")
THEIRS = lm_eval.__path__[0] + "/tasks"
WINDOW = 4000


@pytest.fixture
def scores(subject, tmp_path, monkeypatch):
    """Run a task whose answers are found by what the prompt holds; a choice is as likely as it is short."""

    def run(name, script, folder=tmp_path, **options):
        lengths, decode = [], make_model(subject).encoder.decode

        def generate(decoder, prompts, n_tokens, stop_id, *, ended):
            (prompt,) = (decode(ids) for ids in prompts.tolist())
            (said,) = (said for part, said in script.items() if part in prompt)
            ids = torch.tensor([encoded(subject, said)[1:]])
            length = next((n for n in range(1, ids.shape[1]) if bool(ended(ids[:, :n]))), ids.shape[1])
            lengths.append(length)
            return ids[:, : min(length, n_tokens)]

        def shortest(decoder, tokens, asked):
            return [(-float(len(decode(ids))), False) for _, ids in asked]

        monkeypatch.setattr(harness, "greedy", generate)
        monkeypatch.setattr(harness, "token_scores", shortest)
        options = HarnessOptions(tasks=name, **options)
        model = make_model(subject, WINDOW, rows=1, budget=256)
        model.cache_hook.dbdict = None
        manager = task_manager([name], str(folder))
        loaded = load_tasks(manager, [name], runs_code=options.confirm_run_unsafe_code)
        with finished_requests(model):
            results = evaluate(model, manager, name, loaded[name], tmp_path / "requests", options)
            rows = list(rows_of(results, model.costs))
        return {(row["metric"], row["filter"]): row for row in rows}, lengths

    return run


def write_task(folder, name, rows=({"text": "Say"},), **settings):
    """Write a task with rows of its own; settings that begin with ! are functions."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"task": name, "dataset_path": "json", "test_split": "test", "output_type": "generate_until"}
    task |= {"doc_to_text": "{{text}}", "doc_to_target": "{{target}}"}
    task |= {"dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}, **settings}
    lines = [f"{key}: {v if str(v).startswith('!') else json.dumps(v)}" for key, v in task.items()]
    (folder / f"{name}.yaml").write_text("\n".join(lines))


def local(folder, name, path, rows, **more):
    """Write a task that is a file of the harness's with the data of a file."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = {split: str(folder / f"{name}.jsonl") for split in ("train", "dev", "validation", "test")}
    settings = {"include": f"{THEIRS}/{path}", "task": name, "dataset_path": "json", "dataset_name": None, "tag": None}
    settings |= {"dataset_kwargs": {"data_files": splits}, **more}
    (folder / f"{name}.yaml").write_text(json.dumps(settings))


def test_gsm8k(scores, tmp_path):
    rows = [
        {"question": f"{k} of {word}?", "answer": f"It is {k}.\n#### {k}"}
        for k, word in ((1200, "plums"), (7, "pears"), (12, "figs"))
    ]
    local(tmp_path, "own_gsm8k", "gsm8k/gsm8k.yaml", rows)
    script = {
        "Question: 1200 of plums?\nAnswer:": " so.\n#### 1,200\nQuestion: 5 of plums?\n#### 5",
        "Question: 7 of pears?\nAnswer:": " They are 8, no, 7",
        "Question: 12 of figs?\nAnswer:": " 12 or 13\n\n",
    }
    found, lengths = scores("own_gsm8k", script, num_fewshot=0)
    strict, flexible = (found["exact_match", name] for name in ("strict-match", "flexible-extract"))
    assert (strict["score"], flexible["score"], strict["n"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3), 3)
    assert (strict["interval"], strict["higher_is_better"], strict["task_version"]) == ("exact", True, 3.0)
    assert min(lengths) < 30  # the second question was not written to its end


def test_gsm8k_with_examples(scores, subject, tmp_path):
    rows = [{"question": f"{k} and 1?", "answer": f"#### {k + 1}"} for k in range(8)]
    local(tmp_path, "own_gsm8k", "gsm8k/gsm8k.yaml", rows)
    found, _ = scores("own_gsm8k", {"Answer:": "\n#### 3"}, limit=2)
    assert found["exact_match", "strict-match"]["fewshot"] == 5
    question = encoded(subject, "Question: 0 and 1?\nAnswer:")
    assert found["exact_match", "strict-match"]["longest"] > 5 * len(question)


def test_hellaswag(scores, tmp_path):
    rows = [
        {"activity_label": "Ropes", "ctx_a": "One runs.", "ctx_b": "she", "endings": ends, "label": str(label)}
        for ends, label in (
            (["falls [title]", "jumps over it all", "is", "goes home"], 2),  # the shortest
            (["falls", "jump", "is about to", "goes"], 2),  # the longest, -12 / 11 for a letter
            (["is", "goes to it", "x y", "falls"], 1),  # the longest
        )
    ]
    local(tmp_path, "own_hellaswag", "hellaswag/hellaswag.yaml", rows)
    found, _ = scores("own_hellaswag", {})
    assert found["acc", "none"]["score"] == pytest.approx(1 / 3)
    assert found["acc_norm", "none"]["score"] == pytest.approx(2 / 3)
    assert (found["acc", "none"]["n"], found["acc", "none"]["requests"]) == (3, 10)  # "falls" and "is" are asked twice


def test_mmlu(scores, tmp_path):
    rows = [{"question": f"Which {k}? ", "choices": ["a", "b", "c", "d"], "answer": k} for k in range(4)]
    local(tmp_path, "own_mmlu", "mmlu/default/mmlu_anatomy.yaml", rows)
    found, _ = scores("own_mmlu", {}, num_fewshot=2)
    assert found["acc", "none"]["score"] == 0.25  # equally likely letters: the first
    assert (found["acc", "none"]["fewshot"], found["acc", "none"]["interval"]) == (2, "exact")
    assert found["acc", "none"]["requests"] == 16


def test_longbench(scores, tmp_path):
    pytest.importorskip("jieba")
    rows = [
        {"input": q, "context": f"{q} " * 40, "answers": a, "question": q, "length": 9, "dataset": "", "language": "en",
         "all_classes": [], "_id": q}
        for q, a in (("who", ["Ann Lee", "Ann B."]), ("when", ["in the year 1999"]))
    ]  # fmt: skip
    local(tmp_path, "own_longbench", "longbench/2wikimqa.yaml", rows)
    script = {"Question: who\nAnswer:": " Ann Lee and Bo", "Question: when\nAnswer:": " 1999"}
    found, _ = scores("own_longbench", script)
    f1 = [2 * (2 / 4) * (2 / 2) / (2 / 4 + 2 / 2), 2 * (1 / 1) * (1 / 3) / (1 / 1 + 1 / 3)]  # "the" does not count
    row = found["qa_f1_score", "none"]
    assert row["score"] == pytest.approx(sum(f1) / 2)
    assert (row["interval"], row["n"], row["task_version"]) == ("t", 2, 5.0)
    assert row["low"] < row["score"] < row["high"]


def test_infinitebench(scores, tmp_path):
    rows = [
        {"id": k, "context": "The grass is green. " * 30, "input": f"Key {k}?", "answer": [str(731 + k)], "options": []}
        for k in range(2)
    ]
    local(tmp_path, "own_passkey", "infinitebench/infinitebench_passkey.yaml", rows, test_split="test")
    found, lengths = scores("own_passkey", {"Key 0?": " 731\nKey 1? 9", "Key 1?": " 73\n"})
    row = found["score", "none"]
    assert (row["score"], row["n"], row["higher_is_better"]) == (0.5, 2, True)
    assert max(lengths) <= 6


CODE_EVAL = """
import os
import subprocess
import sys
import datasets
import evaluate

class CodeEval(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({"predictions": datasets.Sequence(text), "references": text})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, k):
        if os.environ.get("HF_ALLOW_CODE_EVAL") != "1":
            raise ValueError("unsafe")
        runs = [[sys.executable, "-I", "-c", f"{p[0]}\\n{r}"] for p, r in zip(predictions, references)]
        passed = [subprocess.run(run, capture_output=True).returncode == 0 for run in runs]
        return {"pass@1": sum(passed) / len(passed)}, {}
"""  # what evaluate fetches from the hub otherwise; found in the folder where the command is run
PROBLEMS = [("add", "a + b", "assert candidate(2, 3) == 5"), ("less", "a - b", "assert candidate(2, 3) == -1")]


def test_humaneval(scores, tmp_path, monkeypatch):
    evaluation = pytest.importorskip("evaluate")
    (tmp_path / "code_eval").mkdir()
    (tmp_path / "code_eval/code_eval.py").write_text(CODE_EVAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(evaluation.config, "HF_EVALUATE_CACHE", str(tmp_path / "evaluate"))
    monkeypatch.setattr(evaluation.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))
    monkeypatch.delenv(CODE_SWITCH, raising=False)
    rows = [
        {"task_id": name, "prompt": f"def {name}(a, b):\n", "entry_point": name, "canonical_solution": "",
         "test": f"def check(candidate):\n    {test}\n"}
        for name, _, test in PROBLEMS
    ]  # fmt: skip
    local(tmp_path, "own_humaneval", "humaneval/humaneval.yaml", rows)
    after = "\nprint(1 / 0)\n"
    script = {"def add": f"    return a + b{after}", "def less": f"    return b - a{after}"}
    with pytest.raises(LabError, match="confirm_run_unsafe_code"):
        scores("own_humaneval", script)
    found, _ = scores("own_humaneval", script, confirm_run_unsafe_code=True)
    row = found["pass@1", "create_test"]
    assert (row["score"], row["n"], row["interval"]) == (0.5, 2, "exact")
    assert CODE_SWITCH not in os.environ


@pytest.mark.parametrize("before", [None, "0"])
def test_programs_may_run_for_as_long_as_they_must(monkeypatch, before):
    monkeypatch.delenv(CODE_SWITCH, raising=False)
    if before is not None:
        monkeypatch.setenv(CODE_SWITCH, before)
    with running_code(True):
        assert os.environ[CODE_SWITCH] == "1"
    assert os.environ.get(CODE_SWITCH) == before
    with running_code(False):
        assert os.environ.get(CODE_SWITCH) == before


STEPS = {
    "5 and 7, how many are they?\nAnswer:": " 12",
    "8 and 1, how": " #### 9",
    "600 and 434, how": "#### 1,034\nQuestion: 1",
    "2 and 2, how": " #### 5",
}


@pytest.mark.parametrize(
    ("name", "script", "key", "score"),
    [
        (
            "facts",
            {"in text 0?": " The numbers are one", "in text 1?": " magic", "in text 2?": " above", "in text 3?": "one"},
            ("score", "none"),
            (1 + 0.5 + 0 + 0.5) / 4,
        ),
        ("steps", STEPS, ("exact_match", "strict-match"), 0.5),
        (
            "key",
            {"is 731.": " 731", "is 732.": " 73", "is 733.": "733\n1", "is 734.": " x734."},
            ("score", "none"),
            0.75,
        ),
        (
            "program",
            {"def add": "  return a + b", "def less": "  return a - b\ndef x(", "def most": "  return a / 0"},
            ("pass@1", "create_test"),
            2 / 3,
        ),
    ],
    ids=["facts", "steps", "key", "program"],
)
def test_local_tasks_of_the_same_shapes(scores, name, script, key, score):
    """Right and wrong answers."""
    options = {"num_fewshot": 0} if name == "steps" else {}
    found, _ = scores(f"lab_{name}", script, folder=TASKS, confirm_run_unsafe_code=name == "program", **options)
    assert found[key]["score"] == pytest.approx(score)


def test_numbers_without_a_formula_have_a_resampled_error(scores, tmp_path):
    rows = [{"text": f"Say {k}.", "target": f"one two three {k} four"} for k in range(4)]
    write_task(tmp_path, "own_bleu", rows, metric_list=[{"metric": "bleu"}])
    script = {f"Say {k}.": said for k, said in enumerate(("one two three 0 four", "one", "one two three 2", "x"))}
    found, _ = scores("own_bleu", script)
    row = found["bleu", "none"]
    assert 0 < row["score"] < 100
    assert (row["interval"], row["n"]) == ("stderr", 4)
    assert row["high"] - row["low"] == pytest.approx(2 * 1.959964 * row["stderr"], rel=1e-6)


def test_which_names_need_the_harness_s_own_files(tmp_path):
    for name, parts in (("inside", ["lab_choice", "lab_subjects"]), ("outside", ["lab_choice", "hellaswag"])):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"group": name, "task": parts}))
    for path in TASKS.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "tagged.yaml").write_text(json.dumps({"task": "tagged", "tag": "some"}))
    (tmp_path / "scoring.py").write_text((TASKS / "scoring.py").read_text())
    manager = type(task_manager(["lab_choice"], str(TASKS)))(include_path=str(tmp_path), include_defaults=False)
    names = ("lab_choice", "lab_subjects", "inside", "outside", "some", "nothing")
    assert [is_complete(manager, name) for name in names] == [True, True, True, False, False, False]


def test_a_task_that_changes_has_another_definition(tmp_path):
    data = tmp_path / "rows.jsonl"
    task = {"task": "one", "tag": "some", "dataset_kwargs": {"data_files": {"test": [str(data)]}}}
    files = {"rows.jsonl": "", "functions.py": "", "one.yaml": json.dumps(task), "two.yaml": '{"task": "two"}'}
    files |= {"all.yaml": '{"group": "all", "task": ["one", "two"]}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def defined():
        manager = task_manager(["one", "all"], str(tmp_path))
        return [definition(manager, name) for name in ("one", "all", "some")]

    before = defined()
    assert defined() == before
    assert len(set(before)) == 3
    changes = {"rows.jsonl": "{}", "one.yaml": json.dumps({**task, "repeats": 2}), "functions.py": "x = 1"}
    for name, text in changes.items():
        (tmp_path / name).write_text(text)
        after = defined()
        assert all(new != old for new, old in zip(after, before, strict=True)), name
        before = after


BROKEN = {
    "no_data": ({"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "none.jsonl"}}}, "cannot be read"),
    "no_package": ({"process_docs": "!function needs.docs"}, "a package that it needs is missing (No module named"),
    "no_function": ({"process_docs": "!function lacks.docs"}, "the harness cannot run it (AttributeError"),
    "no_output": ({"output_type": "thoughts"}, "the harness cannot run it"),
}


def test_every_task_that_cannot_be_loaded_is_a_line(run_folder, tmp_path, capsys):
    (tmp_path / "needs.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "lacks.py").write_text("")
    for name, (settings, _) in BROKEN.items():
        write_task(tmp_path, name, **settings)
    (tmp_path / "choice.yaml").write_text((TASKS / "choice.yaml").read_text())
    names = ["lab_choice", *BROKEN]
    words = [str(run_folder), f"--tasks={','.join(names)}", f"--include_path={tmp_path}", "-o", str(tmp_path / "out")]
    assert main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("--tasks=")]
    assert [line.partition(":")[0] for line in lines] == [f"--tasks={name}" for name in BROKEN]
    for line, (_, fault) in zip(lines, BROKEN.values(), strict=True):
        assert fault in line
    assert not (tmp_path / "out/harness.jsonl").exists()  # nothing was run before all was known to load


def test_files_that_are_no_yaml_are_a_line(tmp_path):
    (tmp_path / "bad.yaml").write_text("task: [a\n")
    (tmp_path / "other.yaml").write_text("this: is no task\n")
    with pytest.raises(LabError, match=r"--include_path=.*bad.yaml cannot be read \(.*\); ") as raised:
        task_manager(["bad"], str(tmp_path))
    assert len(str(raised.value).splitlines()) == 1


def test_a_task_s_own_faults_are_not_hidden(scores, tmp_path):
    """Once the model has answered, an error is that of a function, and its traceback says where."""
    (tmp_path / "scoring.py").write_text("def score(doc, results):\n    raise ValueError('the third line')\n")
    write_task(tmp_path, "own", doc_to_target="x", process_results="!function scoring.score")
    with pytest.raises(ValueError, match="the third line") as raised:
        scores("own", {"Say": "so"})
    assert not isinstance(raised.value, LabError)


def test_a_task_that_changed_is_run_again(run_folder, tmp_path):
    text = (
        (TASKS / "choice.yaml").read_text().replace("tests/eval/harness_tasks/choice.jsonl", str(tmp_path / "d.jsonl"))
    )
    (tmp_path / "choice.yaml").write_text(text)
    rows = (TASKS / "choice.jsonl").read_text().splitlines(keepends=True)
    words = [str(run_folder), "--tasks=lab_choice", f"--include_path={tmp_path}", "-o", str(tmp_path / "out")]
    for n_rows in (4, 4, 6):
        (tmp_path / "d.jsonl").write_text("".join(rows[:n_rows]))
        assert main(words) == 0
    assert [row["n"] for row in read_lines(tmp_path / "out/harness.jsonl") if row["metric"] == "acc"] == [4, 6]


def test_unsafe_tasks_are_found_in_groups_and_tags(tmp_path):
    (tmp_path / "one.yaml").write_text(json.dumps({"task": "one", "unsafe_code": True, "tag": "some"}))
    (tmp_path / "two.yaml").write_text(json.dumps({"task": "two", "tag": "others"}))
    (tmp_path / "all.yaml").write_text(json.dumps({"group": "all", "task": ["inner", "two"]}))
    (tmp_path / "inner.yaml").write_text(json.dumps({"group": "inner", "task": ["one"]}))
    manager = task_manager(["one", "all"], str(tmp_path))
    names = ("one", "two", "all", "inner", "some", "others", "none")
    assert [is_unsafe(manager, name) for name in names] == [True, False, True, True, True, False, False]
