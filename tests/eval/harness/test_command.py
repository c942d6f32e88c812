"""The command eval.harness on tasks of local files, against the decoder in a loop."""

import json
import os
import shutil

import pytest
from scipy.stats import binom
from tokenizers import Tokenizer

from eval.engine.subject import Subject
from eval.harness import model as harness
from eval.harness.__main__ import limit_score, main
from lab.results.store import Store
from tests.eval.commands import lines_of, runner
from tests.eval.commands import rows_in as read_lines
from tests.forked import ROOT

pytest.importorskip("lm_eval")
from lm_eval.api.model import CacheHook

pytestmark = pytest.mark.usefixtures("harness_files")
TASKS = ROOT / "tests/eval/harness_tasks"
OWN = (f"--include_path={TASKS}",)


def rows_in(folder, task, filtered=None):
    rows = [row for row in lines_of(folder, "harness") if row["task"] == task]
    return {row["metric"]: row for row in rows if filtered in (None, row["filter"])}


@pytest.fixture
def run(capsys):
    return lambda *words: runner(main)(words, capsys)


@pytest.fixture(scope="module")
def done(run_folder, tmp_path_factory, harness_files):
    folder = tmp_path_factory.mktemp("harness")
    assert main([str(run_folder), "--tasks=lab_choice,lab_answer,lab_text", *OWN, "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def passes(monkeypatch):
    """The prompts that the harness's model is asked for."""
    rows, model, generate = [], harness.check_ids, Subject.generate
    monkeypatch.setattr(harness, "check_ids", lambda ids, size: rows.append(ids) or model(ids, size))
    monkeypatch.setattr(Subject, "generate", lambda s, ids, *a: (rows.extend(ids.tolist()), generate(s, ids, *a))[1])
    return rows


@pytest.mark.parametrize("task", ["lab_choice", "lab_answer"])
def test_after_ctrl_c_the_same_command_continues(done, run_folder, tmp_path, run, passes, monkeypatch, task):
    words = [run_folder, f"--tasks={task}", *OWN, "--batch=1", "-o", tmp_path]
    add, kept = CacheHook.add_partial, []

    def add_and_stop(self, kind, arguments, value):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(str(arguments))
        add(self, kind, arguments, value)

    with monkeypatch.context() as patch:
        patch.setattr(CacheHook, "add_partial", add_and_stop)
        status, _, err = run(*words)
    assert status == 75
    assert "stopped; the same command continues" in err
    assert not lines_of(tmp_path, "harness")
    passes.clear()
    assert run(*words)[0] == 0
    file = TASKS / f"{task.removeprefix('lab_')}.jsonl"
    n_requests = sum(len(document.get("choices", [0])) for document in read_lines(file))
    assert 0 < len(passes) <= n_requests - 3
    for metric, row in rows_in(done, task).items():  # batches of another size round the scores differently
        for key in ("score", "n"):
            assert rows_in(tmp_path, task)[metric][key] == pytest.approx(row[key], rel=1e-5)


def test_cut_contexts_are_reported(run_folder, tmp_path, run):
    for part, words in (("beginning", ()), ("middle", ("--truncate=middle",))):
        status, out, _ = run(run_folder, "--tasks=lab_facts,lab_key", *OWN, *words, "-o", tmp_path)
        assert status == 0
        assert f"8 contexts were longer than the window and lost their {part}; raise --max_length" in out
    facts = [row for row in lines_of(tmp_path, "harness") if row["task"] == "lab_facts"]
    assert [(row["truncate"], row["n"]) for row in facts] == [("left", 4), ("middle", 4)]


def test_groups_and_examples(run_folder, tmp_path, run):
    words = [run_folder, *OWN, "--max_length=300"]
    assert run(*words, "--tasks=lab_subjects,lab_steps", "-o", tmp_path)[0] == 0
    parts = [rows_in(tmp_path, f"lab_subject_{name}")["acc"] for name in ("plants", "stones")]
    whole = rows_in(tmp_path, "lab_subjects")["acc"]
    assert [row["n"] for row in (*parts, whole)] == [5, 3, 8]
    assert whole["score"] == pytest.approx((5 * parts[0]["score"] + 3 * parts[1]["score"]) / 8)
    steps = [rows_in(tmp_path, "lab_steps", name)["exact_match"] for name in ("strict-match", "flexible-extract")]
    assert [(row["fewshot"], row["n"]) for row in steps] == [(2, 4), (2, 4)]
    assert run(*words, "--tasks=lab_steps", "--num_fewshot=3", "-o", tmp_path / "more")[0] == 0
    row = rows_in(tmp_path / "more", "lab_steps")["exact_match"]
    assert (row["fewshot"], row["num_fewshot"]) == (3, 3)


TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}[assistant]{% endif %}"


def test_questions_as_a_chat_to_a_hugging_face_folder(hugging_face_folder, tmp_path, run, passes):
    folder = tmp_path / "model"
    shutil.copytree(hugging_face_folder, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    file = tmp_path / "other.jinja"
    file.write_text("Q: {{ messages[0].content }} A:")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos = tokenizer.token_to_id("<bos>")
    for option, before, after, chat in (
        ("--apply_chat_template", "[user]", "[assistant]", True),
        (f"--chat_template={file}", "Q: ", " A:", str(file)),
    ):
        passes.clear()
        words = ["--tasks=lab_answer", *OWN, "--limit=2", "--batch=1", option, "-o", tmp_path / before]
        assert run(folder, *words)[0] == 0
        assert {ids.count(bos) for ids in passes} == {1}
        found = {tokenizer.decode(ids[ids.index(bos) + 1 :]) for ids in passes}
        assert found == {f"{before}{document['text']}{after}" for document in read_lines(TASKS / "answer.jsonl")[:2]}
        assert rows_in(tmp_path / before, "lab_answer")["exact_match"]["chat"] == chat


def test_programs_run_where_that_is_confirmed(run_folder, tmp_path, monkeypatch, capsys):
    switch = "HF_ALLOW_CODE_EVAL"
    monkeypatch.setenv(switch, "0")  # to be as it was afterwards
    words = [str(run_folder), "--tasks=lab_program", *OWN, "--limit=1", "-o", str(tmp_path)]
    assert main(words) == 2
    assert "--tasks=lab_program: Attempted to run task: lab_program which is marked as" in capsys.readouterr().err
    assert os.environ[switch] == "0"
    assert main([*words, "--confirm_run_unsafe_code"]) == 0
    assert os.environ[switch] == "1"


def test_shares_have_exact_limits():
    """Three of ten, by the tails of the binomial distribution; the example of `interval` has limits by t."""
    found = limit_score(0.3, [1.0] * 3 + [0.0] * 7, 0.1527, 10)
    tails = binom.sf(2, 10, found["low"]), binom.cdf(3, 10, found["high"])
    assert (tails, found["interval"]) == (pytest.approx((0.025, 0.025)), "exact")
    for score, each in ((0.4, [0.0, 1.0]), (0.5, [[0.0, 1.0]]), (0.5, [])):  # not their mean, pairs, a group
        assert limit_score(score, each, None, 2)["low"] is None


def test_a_task_whose_documents_or_scores_changed_is_recorded_again(run_folder, tmp_path):
    rows = (TASKS / "choice.jsonl").read_text().splitlines(keepends=True)
    text = (TASKS / "choice.yaml").read_text()
    (tmp_path / "choice.yaml").write_text(text.replace("tests/eval/harness_tasks/choice.jsonl", f"{tmp_path}/d.jsonl"))
    words = [str(run_folder), "--tasks=lab_choice", f"--include_path={tmp_path}", "-o", str(tmp_path / "out")]
    for n_rows in (4, 4, 6):
        (tmp_path / "d.jsonl").write_text("".join(rows[:n_rows]))
        assert main(words) == 0
    found = lines_of(tmp_path / "out", "harness")
    assert [row["n"] for row in found if row["metric"] == "acc"] == [4, 6]
    (file,) = (tmp_path / "out").glob("harness-*.jsonl")
    store = Store(file.parent, "harness-tiny", read_lines(file)[0]["key"])
    store.append([{**row, "score": -1.0} for row in found])
    assert main(words) == 0
    again = lines_of(tmp_path / "out", "harness")[2 * len(found) :]
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in found[2:]]
