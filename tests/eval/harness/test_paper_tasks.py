"""The papers' tasks on rows with the fields of their data sets: prompts, and scores from 0 to 1."""

import json

import datasets
import pytest

from eval.harness.tasks import load_tasks, task_manager
from tests.eval.harness.parts import ROOT

pytest.importorskip("lm_eval")
CHOICES = "A. Bonn B. Cologne C. Mainz D. Trier"
LEVAL = {
    "tpo": (f"Which? {CHOICES}", "B. Cologne"),
    "quality": (f"Which? {CHOICES}", "C"),
    "coursera": (f"Which two? {CHOICES}", "AD explained"),
    "sci_fi": ("Is it wet, based on the world described in the document.", "False [fact: True]"),
}
ANSWERED = {  # task: right answers, wrong ones; by the rules of L-Eval's script
    "toefl": (["B", "The answer is B. Cologne"], ["C", "none", ""]),
    "quality": (["C. Mainz"], ["A or C"]),
    "coursera": (["AD", "DA", "A. Bonn\nD) Trier", "I think A. and D."], ["A", "ABD", "none of them"]),
    "sfiction_loyal": (["False", "it is false."], ["True", "perhaps"]),
    "sfiction_fact": (["True, of course"], ["false"]),
}


@pytest.fixture(scope="module")
def leval(tmp_path_factory):
    """L-Eval's tasks, on a document with two equal questions in each of its files."""
    folder = tmp_path_factory.mktemp("leval")
    (folder / "data/leval").mkdir(parents=True)
    for name, (question, output) in LEVAL.items():
        row = {"instructions": [question] * 2, "outputs": [output] * 2, "input": "The Rhine.", "evaluation": "exam"}
        (folder / f"data/leval/{name}.jsonl").write_text(json.dumps({**row, "source": name}) + "\n")
    own = str(ROOT / "eval/papers/leval")
    names = ["toefl", "quality", "coursera", "sfiction"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        loaded = load_tasks(task_manager(names, own, run_own_code=True), names, run_unsafe_code=False)
    assert [group.name for group in loaded["sfiction"]["groups"].values()] == ["sfiction"]
    return {name: task for each in loaded.values() for name, task in each["tasks"].items()}


@pytest.mark.parametrize("name", ANSWERED)
def test_l_evals_rows_are_asked_and_scored(leval, name):
    task = leval[name]
    rows = list(task.test_docs())
    assert len(rows) == 2
    prompt = task.doc_to_text(rows[0])
    assert ("The Rhine." in prompt) == (name != "sfiction_fact")
    assert ("real-world knowledge" in prompt) == (name == "sfiction_fact")
    assert rows[0]["question"] in prompt
    right, wrong = ANSWERED[name]
    assert [task.process_results(rows[0], [answer]) for answer in right] == [{"acc": 1.0}] * len(right)
    assert [task.process_results(rows[0], [answer]) for answer in wrong] == [{"acc": 0.0}] * len(wrong)


TEXT = {"context": "The Rhine flows through Cologne.", "answers": ["Cologne"], "length": 5, "all_classes": None}
LONGBENCH = {"question": "Which city?", "input": "Which city?", **TEXT, "dataset": "x", "language": "en"}
INFINITE = {"id": 0, "context": "The Rhine flows through Cologne.", "input": "Which city?", "answer": ["Cologne"]}
OPTIONS = ["Bonn", "Cologne", "Mainz", "Trier"]
HUB = {  # task: row, the right answer, a wrong one
    **{
        f"longbench_{name}": (LONGBENCH, "Cologne", "Bonn")
        for name in ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa")
    },
    **{f"longbench_{name}": (LONGBENCH, "Cologne", "Bonn") for name in ("gov_report", "qmsum", "multi_news", "samsum")},
    "longbench_trec": ({**LONGBENCH, "all_classes": OPTIONS}, "Cologne", "Bonn"),
    "infinitebench_longbook_qa_en": ({**INFINITE, "options": []}, "Cologne", "Bonn"),
    "infinitebench_passkey": ({**INFINITE, "answer": ["71432"], "options": []}, "71432", "71433"),
    "infinitebench_number_string": ({**INFINITE, "answer": ["2200012222"], "options": []}, "2200012222", "1"),
    "infinitebench_kv_retrieval": ({**INFINITE, "answer": ["de3d8814"], "options": []}, "de3d8814", "x"),
    "infinitebench_math_find": ({**INFINITE, "answer": ["38"], "options": []}, "38", "39"),
    "infinitebench_longbook_choice_en": ({**INFINITE, "options": OPTIONS}, "B", "C"),
    "infinitebench_code_debug": ({**INFINITE, "options": OPTIONS}, "B", "C"),
    "infinitebench_longbook_sum_en": ({**INFINITE, "options": []}, "Cologne", "Bonn"),
    "infinitebench_longdialogue_qa_en": ({**INFINITE, "options": []}, "Cologne", "Bonn"),
}


@pytest.mark.slow
def test_the_hubs_rows_are_asked_and_scored_from_0_to_1(monkeypatch):
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        pytest.importorskip(package)
    asked = iter(HUB.items())

    def load_dataset(*places, **options):
        name, (row, *_) = next(asked)
        rows = datasets.Dataset.from_list([row])
        return datasets.DatasetDict({"test": rows, name.removeprefix("infinitebench_"): rows})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = load_tasks(task_manager([*HUB], None, run_own_code=False), [*HUB], run_unsafe_code=False)
    for name, (row, right, wrong) in HUB.items():
        (task,) = loaded[name]["tasks"].values()
        (doc,) = task.test_docs()
        assert row["context"] in task.doc_to_text(doc), name
        scores = [task.process_results(doc, [answer])["score"] for answer in (right, wrong)]
        assert scores == [pytest.approx(1.0), 0.0], name


FEWSHOT = {  # task: the paper's score, of a right answer, one with half of its words right, and none
    "narrative_qa": ("f1", 2 / 3),  # one word of two and of one
    "qasper": ("f1", 2 / 3),
    "quality": ("exact_match", 0.0),
    "qmsum": ("rouge", 0.0),  # no pair of words is shared
}


@pytest.mark.parametrize("name", FEWSHOT)
def test_few_shot_rows_are_asked_and_scored(name, tmp_path, monkeypatch):
    row = {"id": "7", "pid": "7_0", "input": "The Rhine is deep.", "query": "Which river?"}
    row |= {"query_examples": ["Is it deep?"], "output_examples": ["yes"]}
    (tmp_path / "data/fewshot").mkdir(parents=True)
    lines = [json.dumps({**row, "output": output}) for output in ("the river Rhine", "Upper Rhine")]
    (tmp_path / f"data/fewshot/{name}.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    task = f"fewshot_{name}"
    manager = task_manager([task], str(ROOT / "eval/papers/fewshot"), run_own_code=True)
    (loaded,) = load_tasks(manager, [task], run_unsafe_code=False)[task]["tasks"].values()
    (doc,) = loaded.test_docs()
    assert loaded.doc_to_text(doc) == (
        "The Rhine is deep.\n\nQuestion: Is it deep? \nAnswer:yes\n\nQuestion: Which river? \nAnswer:"
    )
    score, half = FEWSHOT[name]
    answers = [" The river Rhine.\nQuestion: next", "Rhine", "Elbe"]
    assert [loaded.process_results(doc, [answer])[score] for answer in answers] == pytest.approx([1.0, half, 0.0])
