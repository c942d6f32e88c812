"""The command eval.harness on tasks of local files, against the decoder in a loop."""

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from eval.harness import main
from eval.harness_distance import with_parameters
from eval.harness_encoding import Encoder
from eval.harness_options import HarnessOptions, spell_out
from eval.harness_requests import FinishedRequests, request_hash
from eval.harness_scoring import Outcome, Scorer
from eval.measuring import Request
from lab.loading import open_model
from tests.eval.harnessed import ROOT, TASKS, by_loop, documents, encoded, read_lines, rows_in

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.usefixtures("harness_files")
NAMES = ("lab_choice", "lab_answer", "lab_text")
OWN = f"--include_path={TASKS}"


def run(words, capsys):
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def done(run_folder, tmp_path_factory, harness_files):
    """Three tasks, run once."""
    folder = tmp_path_factory.mktemp("harness")
    words = [str(run_folder), "--tasks", ",".join(NAMES), OWN, "-o", str(folder)]
    assert main(words) == 0
    return folder, words


@pytest.fixture(scope="module")
def model(run_folder):
    return open_model(run_folder)


def recorded(folder, row):
    return read_lines(folder / row["cases"])


def test_choices_are_scored_as_the_decoder_scores_them(done, model):
    folder, _ = done
    right, right_by_length = [], []
    for document in documents("choice"):
        context = encoded(model, document["text"])
        scores = []
        for choice in document["choices"]:
            whole = encoded(model, f"{document['text']} {choice}")
            scores.append(by_loop(model, whole[: len(context)], whole[len(context) :])[0])
        right.append(float(np.argmax(scores) == document["label"]))
        lengths = [len(choice) for choice in document["choices"]]
        right_by_length.append(float(np.argmax(np.array(scores) / lengths) == document["label"]))
    rows = rows_in(folder, "lab_choice")
    for metric, each in (("acc", right), ("acc_norm", right_by_length)):
        row = rows[metric]
        assert row["score"] == pytest.approx(np.mean(each))
        assert [test["scores"][metric] for test in recorded(folder, row)] == each
        exact = binomtest(int(sum(each)), 12).proportion_ci(0.95, "exact")
        assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high), abs=1e-6)
        assert row["interval"] == "exact"
        assert row["stderr"] == pytest.approx(np.std(each, ddof=1) / math.sqrt(12))
    assert 0 < sum(right) < 12


def test_answers_are_the_decoder_s(done, model):
    folder, _ = done
    row = rows_in(folder, "lab_answer")["exact_match"]
    stop = model.tokenizer.token_to_id("<eos>")
    expected = []
    for document in documents("answer"):
        ids = encoded(model, document["text"])
        answer = []
        while len(answer) < 12 and stop not in answer:
            with torch.no_grad():
                answer.append(int(model.decoder(torch.tensor([ids + answer]))[0, -1].argmax()))
        text = model.tokenizer.decode([token for token in answer if token != stop])
        expected.append(text.split("e")[0])
    assert [test["answer"] for test in recorded(folder, row)] == [str([text]) for text in expected]
    assert len(set(expected)) > 1
    assert row["score"] == np.mean([text == d["target"] for text, d in zip(expected, documents("answer"), strict=True)])


def test_texts_are_scored_in_the_harness_s_pieces(done, model):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    folder, _ = done
    nats, words, bytes_ = [], [], []
    for document in documents("text"):
        ids = model.tokenizer.encode(document["text"], add_special_tokens=False).ids
        bos = model.tokenizer.token_to_id("<bos>")
        windows = [make_disjoint_window(pair) for pair in get_rolling_token_windows(ids, bos, 64, 1)]
        nats.append(sum(by_loop(model, inputs, targets)[0] for inputs, targets in windows))
        words.append(len(document["text"].split()))
        bytes_.append(len(document["text"].encode()))
    assert max(len(model.tokenizer.encode(d["text"]).ids) for d in documents("text")) > 129  # three pieces
    rows = rows_in(folder, "lab_text")
    assert rows["word_perplexity"]["score"] == pytest.approx(math.exp(-sum(nats) / sum(words)), rel=1e-5)
    assert rows["byte_perplexity"]["score"] == pytest.approx(math.exp(-sum(nats) / sum(bytes_)), rel=1e-6)
    assert rows["bits_per_byte"]["score"] == pytest.approx(-sum(nats) / sum(bytes_) / math.log(2), rel=1e-6)
    for row in rows.values():
        assert row["low"] < row["score"] < row["high"]
        assert row["interval"] == "ratio"
    assert rows["bits_per_byte"]["high"] == pytest.approx(math.log2(rows["byte_perplexity"]["high"]))


def test_rows_name_what_was_measured(done, model):
    folder, _ = done
    row = rows_in(folder, "lab_choice")["acc"]
    known = (row["model"], row["method"], row["checkpoint"], row["precision"], row["n"], row["length"], row["seed"])
    assert known == ("tiny", "rope+plain", "tokens-000000000004096", "float32", 12, 64, 0)
    assert row["protocol"] == f"lm-eval-{lm_eval.__version__}"
    assert row["hardware"]
    assert row["commit"]
    assert (row["cut"], row["task_version"], row["higher_is_better"], row["fewshot"]) == (0, 1.0, True, 0)
    pairs = [(d["text"], choice) for d in documents("choice") for choice in d["choices"]]
    assert row["requests"] == len(pairs)
    assert row["longest"] == max(len(encoded(model, f"{text} {choice}")) for text, choice in pairs) - 1
    (requests,) = (folder / "harness-cases").glob("requests-*.jsonl")
    kept = read_lines(requests)
    assert len(kept) == len(pairs) + 6 + 4
    assert row["seconds"] == pytest.approx(sum(line["seconds"] for line in kept[: len(pairs)]), abs=1e-3)
    (theirs,) = (folder / "harness-cases").glob("lab_choice-*.json")
    assert json.loads(theirs.read_text())["results"]["lab_choice"]["acc,none"] == row["score"]


def test_finished_names_are_not_run_again(done, capsys, monkeypatch):
    folder, words = done
    before = (folder / "harness.jsonl").read_text()
    monkeypatch.setattr("eval.harness.run_name", None)
    status, out, _ = run(words, capsys)
    assert status == 0
    assert (folder / "harness.jsonl").read_text() == before
    assert "lab_text" in out


def test_after_ctrl_c_the_same_command_goes_on(done, run_folder, tmp_path, capsys, monkeypatch):
    whole, _ = done
    words = [run_folder, "--tasks=lab_choice,lab_answer", OWN, "--batch=2", "-o", tmp_path]
    keep = FinishedRequests.keep

    def keep_and_stop(self, outcomes):
        keep(self, outcomes)
        if len(self.known) > 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FinishedRequests, "keep", keep_and_stop)
        status, _, err = run(words, capsys)
    assert status == 75
    (file,) = (tmp_path / "harness-cases").glob("requests-*.jsonl")
    n_kept = len(read_lines(file))
    assert f"stopped; {n_kept} finished requests are in {file}; the same command goes on" in err
    assert 9 < n_kept < 36
    assert not (tmp_path / "harness.jsonl").exists()
    with file.open("a") as torn:
        torn.write('{"request": "a line that a crash cut sh')
    asked = []
    passes = Scorer.passes
    monkeypatch.setattr(Scorer, "passes", lambda self, requests: (asked.extend(requests), passes(self, requests))[1])
    assert run(words, capsys)[0] == 0
    assert len(asked) == 36 - n_kept
    for task in ("lab_choice", "lab_answer"):
        rows, expected = rows_in(tmp_path, task), rows_in(whole, task)
        same = ("score", "low", "high", "n", "longest", "cut", "requests")
        for metric in expected:
            assert [rows[metric][key] for key in same] == [expected[metric][key] for key in same]


def test_finished_requests_are_read_back_as_they_were(tmp_path):
    first = {
        "a": Outcome((-1.25, True), 7, False, 0.5),
        "b": Outcome(-3.0, 9, True, 0.25),
        "c": Outcome("x\ny", 2, False, 0),
    }
    finished = FinishedRequests(tmp_path / "requests.jsonl")
    finished.keep(first)
    assert FinishedRequests(tmp_path / "requests.jsonl").known == finished.known == first


def test_requests_that_differ_have_names_that_differ():
    settings = {"until": ["a"], "max_gen_toks": 3}
    same = request_hash("generate_until", ("One", dict(reversed(settings.items()))))
    names = [
        request_hash("generate_until", ("One", settings)),
        request_hash("generate_until", ("One", {"until": ["a"]})),
    ]
    names += [request_hash("loglikelihood_rolling", ("One",)), request_hash("loglikelihood", ("One", ""))]
    assert request_hash("a", ("x",)) != request_hash("b", ("x",))
    assert names[0] == same
    assert len(set(names)) == 4


def test_data_are_loaded_once(run_folder, tmp_path, capsys, monkeypatch):
    from lm_eval.tasks import TaskManager

    loaded, load = [], TaskManager.load
    monkeypatch.setattr(TaskManager, "load", lambda self, names: (loaded.append(names), load(self, names))[1])
    words = [run_folder, "--tasks=lab_choice,lab_answer", OWN, "--limit=1", "-o", tmp_path]
    assert run(words, capsys)[0] == 0
    assert loaded == [["lab_choice"], ["lab_answer"]]


def test_more_documents_take_up_what_is_there(run_folder, tmp_path, capsys, monkeypatch):
    words = [run_folder, "--tasks=lab_choice", OWN, "-o", tmp_path]
    assert run([*words, "--limit=3"], capsys)[0] == 0
    asked = []
    passes = Scorer.passes
    monkeypatch.setattr(Scorer, "passes", lambda self, requests: (asked.extend(requests), passes(self, requests))[1])
    assert run([*words, "--limit=5"], capsys)[0] == 0
    assert len(asked) == 6
    assert run([*words, "--limit=5", "--max_length=63"], capsys)[0] == 0  # another window, other numbers
    assert len(asked) == 6 + 15
    assert run([*words, "--limit=4", "--distance=string", "--shift=4", "--window=1"], capsys)[0] == 0  # another method
    assert len(asked) == 6 + 15 + 12
    assert [row["n"] for row in read_lines(tmp_path / "harness.jsonl")] == [3, 3, 5, 5, 5, 5, 4, 4]


def test_the_short_form_of_a_distance_method(run_folder, tmp_path, capsys):
    base = [run_folder, "--tasks=lab_choice", OWN, "--limit=3", "-o", tmp_path]
    status, out, _ = run([*base, "--distance", "string", "--shift=4", "--window=1"], capsys)
    assert status == 0
    row = rows_in(tmp_path, "lab_choice")["acc"]
    assert row["method"] == "rope+string(shift=4,window=1)"
    assert (row["n"], row["limit"]) == (3, 3)
    assert "change anything" not in out
    words = ["--distance=string", "--position.distance.shift=60", "--position.distance.window=1"]
    status, out, _ = run([*base, *words], capsys)
    assert "no text was long enough for the distance method to change anything: shift=60" in out
    assert spell_out(["m", "--limit=4"]) == ["m", "--limit=4"]
    assert spell_out(["m", "--shift=4"]) == ["m", "--shift=4"]
    assert spell_out(["m", "--apply_chat_template", "false"]) == ["m", "--apply_chat_template", "false"]


@pytest.mark.parametrize(
    ("method", "max_length", "expected"),
    [
        ("string", None, {"shift": 22, "window": 11}),  # a third of 64, rounded up, and half of that
        ("string", 128, {"shift": 22, "window": 11}),
        ("self_extend", None, {"group": 2, "window": 10}),  # 42 // 4; 10 + 54 / 2 is 37, and 10 + 54 is more than 42
        ("self_extend", 128, {"group": 3, "window": 16}),  # 64 // 4; 16 + 112 / 3 is 53.3
        ("dca", None, {"train_len": 42, "chunk": 31, "window": 11}),
        ("rerope", None, {"window": 10, "log_n": 42}),
    ],
    ids=str,
)
def test_a_distance_method_alone_follows_from_the_window(run_folder, hugging_face_folder, method, max_length, expected):
    options = HarnessOptions(tasks="x", max_length=max_length)
    named = {"position.distance.method": method, "position.frequency.theta": 9.0}
    for model in (run_folder, hugging_face_folder, next((run_folder / "checkpoints").iterdir())):
        request = with_parameters(Request(model, options, named, False, None))
        assert request.overrides == named | {f"position.distance.{name}": value for name, value in expected.items()}
    given = named | {"position.distance.window": 3}
    assert with_parameters(Request(run_folder, options, given, False, None)).overrides == given


def test_the_command_of_a_method_alone(run_folder, tmp_path, capsys):
    words = [run_folder, "--tasks", "lab_choice,lab_answer", OWN, "--distance", "string", "-o", tmp_path]
    status, out, err = run(words, capsys)
    assert status == 0, err
    assert rows_in(tmp_path, "lab_answer")["exact_match"]["method"] == "rope+string(shift=22,window=11)"
    assert "tiny: rope+string(shift=22,window=11)" in out


def test_cut_contexts_are_reported(run_folder, tmp_path, capsys):
    status, out, _ = run([run_folder, "--tasks=lab_facts,lab_key", OWN, "-o", tmp_path], capsys)
    assert status == 0
    facts, key = rows_in(tmp_path, "lab_facts")["score"], rows_in(tmp_path, "lab_key")["score"]
    assert (facts["n"], facts["cut"], key["cut"], facts["longest"]) == (4, 4, 4, 64)
    assert "lab_facts: 4 of 4 contexts were longer than the window and lost their beginning; raise --max_length" in out


def test_groups_and_examples(run_folder, tmp_path, capsys):
    status, _, err = run(
        [run_folder, "--tasks=lab_subjects,lab_steps", OWN, "--max_length=300", "-o", tmp_path], capsys
    )
    assert status == 0, err
    parts = [rows_in(tmp_path, f"lab_subject_{name}")["acc"] for name in ("plants", "stones")]
    whole = rows_in(tmp_path, "lab_subjects")["acc"]
    assert [row["n"] for row in (*parts, whole)] == [5, 3, 8]
    assert whole["score"] == pytest.approx((5 * parts[0]["score"] + 3 * parts[1]["score"]) / 8)
    assert whole["interval"] == "stderr"
    assert whole["high"] - whole["score"] == pytest.approx(1.959964 * whole["stderr"], rel=1e-5)
    assert whole["seconds"] == pytest.approx(parts[0]["seconds"] + parts[1]["seconds"], abs=2e-3)
    assert (whole["requests"], parts[0]["requests"]) == (32, 20)
    steps = [rows_in(tmp_path, "lab_steps", name)["exact_match"] for name in ("strict-match", "flexible-extract")]
    assert [(row["fewshot"], row["n"]) for row in steps] == [(2, 4), (2, 4)]
    longest = steps[0]["longest"]
    words = [run_folder, "--tasks=lab_steps", OWN, "--max_length=300", "-o", tmp_path / "more"]
    assert run([*words, "--num_fewshot=3"], capsys)[0] == 0
    row = rows_in(tmp_path / "more", "lab_steps")["exact_match"]
    assert (row["fewshot"], row["num_fewshot"]) == (3, 3)
    assert row["longest"] > longest


def test_the_seed_draws_the_examples(run_folder, tmp_path, capsys):
    words = [run_folder, "--tasks=lab_steps", OWN, "--limit=2", "--max_length=300"]
    for seed, place in ((0, "one"), (1, "one"), (0, "other")):
        assert run([*words, f"--seed={seed}", "-o", tmp_path / place], capsys)[0] == 0
    (first, _, second, _), (again, _) = (read_lines(tmp_path / place / "harness.jsonl") for place in ("one", "other"))
    assert [row["seed"] for row in (first, second, again)] == [0, 1, 0]
    hashes = [
        [test["prompt_hash"] for test in recorded(tmp_path / place, row)]
        for place, row in (("one", first), ("one", second), ("other", again))
    ]
    assert hashes[0] == hashes[2] != hashes[1]


def test_hugging_face_folders_are_measured(hugging_face_folder, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(hugging_face_folder, folder)
    assert run([folder, "--tasks=lab_choice", OWN, "--limit=2", "-o", tmp_path], capsys)[0] == 0
    assert rows_in(tmp_path, "lab_choice")["acc"]["checkpoint"] is None


TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}[assistant]{% endif %}"


def test_questions_as_a_chat(hugging_face_folder, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(hugging_face_folder, folder)
    words = [folder, "--tasks=lab_answer", OWN, "--limit=2", "-o", tmp_path, "--apply_chat_template"]
    status, _, err = run(words, capsys)
    assert status == 2
    assert "has no chat template" in err
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    prompts, encode = [], Encoder.encode
    monkeypatch.setattr(
        Encoder, "encode", lambda self, text: prompts.append((text, encode(self, text))) or prompts[-1][1]
    )
    assert run(words, capsys)[0] == 0
    assert rows_in(tmp_path, "lab_answer")["exact_match"]["chat"] is True
    text, ids = prompts[0]
    question = documents("answer")[0]["text"]
    assert text == f"<bos>[user]{question}[assistant]"
    bos = open_model(folder).tokenizer.token_to_id("<bos>")
    assert (ids[0], ids.count(bos)) == (bos, 1)
    assert open_model(folder).tokenizer.decode(ids) == text.removeprefix("<bos>")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--tasks="], "tasks="),
        ([f"--include_path={TASKS}/none", "--tasks=a"], "no such folder"),
        ([OWN, "--tasks=lab_choice", "--plot"], "--plot"),
        ([OWN, "--tasks=lab_choice", "--max_length=1"], "max_length=1"),
        ([OWN, "--tasks=lab_choice", "--tsks=1"], "unknown setting"),
        ([OWN, "--tasks=lab_choice", "--distance=strings"], "did you mean string?"),
        ([OWN, "--tasks=lab_choice", "--distance=leaky_rerope"], "must be set"),
        ([OWN, "--tasks=lab_choice", "--apply_chat_template"], "has no chat template"),
        ([OWN, "--tasks=lab_program"], "--confirm_run_unsafe_code"),
        ([], "--tasks: must be set"),
    ],
    ids=str,
)
def test_wrong_input_is_a_line(run_folder, tmp_path, capsys, words, fault):
    status, _, err = run([run_folder, *words, "-o", tmp_path], capsys)
    assert status == 2
    assert fault in err
    assert "Traceback" not in err


def test_a_folder_that_is_not_there(tmp_path, capsys):
    for method in ([], ["--distance=string"]):
        status, _, err = run([tmp_path / "none", "--tasks=lab_choice", OWN, *method], capsys)
        assert (status, "no such folder; give a run folder" in err) == (2, True)


def test_without_the_package_the_extra_is_named(run_folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    status, _, err = run([run_folder, "--tasks=lab_choice"], capsys)
    assert (status, "pip install -e '.[harness]'" in err) == (2, True)


@pytest.mark.slow
def test_the_command_runs_on_its_own_and_knows_the_harness_s_tasks(run_folder, tmp_path):
    words = [sys.executable, "-m", "eval.harness", str(run_folder), "--tasks=hellaswg", "-o", str(tmp_path)]
    finished = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.strip().splitlines()[-1].startswith("--tasks=hellaswg: no task")
