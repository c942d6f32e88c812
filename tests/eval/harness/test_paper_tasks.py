"""The papers' tasks on rows with the fields of their data sets: prompts, and scores from 0 to 1."""

import json

import pytest

from eval.harness.__main__ import load_tasks
from tests.forked import ROOT

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
    "coursera": (["AD", "DA", "A. Bonn\nD) Trier", "I think A. and D."], ["ABD", "none of them", "BC"]),
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
        *tasks, group = load_tasks(names, own)[1]
    assert group.name == "sfiction"
    return {task.task_name: task for task in [*tasks, *group.get_all_tasks()]}


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
    if name == "coursera":  # a quarter for some of the right options, as in L-Eval's Evaluation/em.py
        assert [task.process_results(rows[0], [answer]) for answer in ("A", "D. Trier", "AA")] == [{"acc": 0.25}] * 3


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
    (loaded,) = load_tasks([task], str(ROOT / "eval/papers/fewshot"))[1]
    (doc,) = loaded.test_docs()
    assert loaded.doc_to_text(doc) == (
        "The Rhine is deep.\n\nQuestion: Is it deep? \nAnswer:yes\n\nQuestion: Which river? \nAnswer:"
    )
    score, half = FEWSHOT[name]
    answers = [" The river Rhine.\nQuestion: next", "Rhine", "Elbe"]
    assert [loaded.process_results(doc, [answer])[score] for answer in answers] == pytest.approx([1.0, half, 0.0])


COMPLETED = {  # how the released prompt begins and ends, a right answer, a wrong one
    "passkey": ("There is an important info", "Q?\n\nThe pass key is", " 71.", "7 71"),
    "number_string": ("There is an important info", "Q?\n\nThe sequence of digits is", " 71\n5", "17"),
    "kv_retrieval": ("Extract the value corresponding", "Long text.\n\nQ?", '"71"', "710"),
    "longbook_sum_en": ("Summarize the book below.\n\n", "Long text.\n\nSummary:", "71", "none"),
    "longbook_qa_en": ("Read the book and answer the question. Be very concise", "Question: Q?\nAnswer:", "71", "none"),
    "longbook_choice_en": ("Read the book", "B. 71\nC. c\nD. d\n\nThe letter of the correct answer is", " B", " C"),
    "longdialogue_qa_en": ("Below is a dialogue", "has been replaced with $$MASK$$ is likely", " 71", "no"),
    "math_find": ("What is the largest number in the following list?\n\nLong", "largest number of it.", "71", "7"),
    "code_debug": ("Following is a Python code", "B. 71\nC. c\nD. d\n\nThe correct option is:", " B.", " C"),
}


@pytest.mark.parametrize("name", COMPLETED)
def test_infinitebench_is_completed_as_in_the_released_script(name, monkeypatch):
    datasets = pytest.importorskip("datasets")
    begin, end, right, wrong = COMPLETED[name]
    question = "Find The largest number of it." if name == "math_find" else "Q?"
    row = {"id": 1, "context": "Long text.", "input": question, "answer": ["71"], "options": ["a", "71", "c", "d"]}

    def load(path, *_, **__):
        assert path == "xinrongzhang2022/InfiniteBench"
        return datasets.DatasetDict({name: datasets.Dataset.from_list([row])})

    monkeypatch.setattr(datasets, "load_dataset", load)
    (task,) = load_tasks([f"completion_{name}"], str(ROOT / "eval/papers/infinitebench"))[1]
    (doc,) = task.test_docs()
    prompt = task.doc_to_text(doc)
    assert prompt.startswith(begin)
    assert prompt.endswith(end)
    assert "Long text." in prompt
    assert task.config.generation_kwargs["until"] == []
    scored = [task.process_results(doc, [answer])["score"] for answer in (right, wrong)]
    assert scored == [pytest.approx(1.0), 0.0]
