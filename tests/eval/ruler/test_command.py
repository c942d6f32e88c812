"""The command from end to end, on small models as they lie on disk."""

import json
import shutil

import pytest
import torch

import eval.engine.subject
import eval.ruler.__main__ as command
from eval.engine.subject import Subject, first_id
from eval.ruler.tasks import ALL
from lab.loading import open_model
from lab.train.checkpoints import folder_name
from tests.eval.commands import check_faults, rows_named, runner
from tests.eval.ruler.oracle import Oracle, solve
from tests.opened import save_weights

QUICK = ["--tests=3", "--answer_budget=40"]


run = runner(command.main)
rows_of = rows_named("ruler.jsonl")


@pytest.fixture
def solved(monkeypatch, bpe):
    """Let an oracle answer in place of the model; the list holds the number of prompts of each call."""
    calls = []

    def generate(subject, prompts, n_tokens):
        calls.append(len(prompts))
        share = 1.0 if subject.model.consumed_tokens in (None, 4096, 8192) else 0.5
        stop_id = 1 if subject.stop_id is None else subject.stop_id
        return Oracle(subject.tokenizer, stop_id, lambda p: cut(solve(p), share))(prompts, n_tokens)

    monkeypatch.setattr(Subject, "generate", generate)
    return calls


def cut(answers, share):
    return answers[: max(1, int(len(answers) * share))]


def test_the_command_measures_a_run(run_folder, tmp_path, capsys):
    words = [run_folder, *QUICK, "--tasks=vt,niah_multivalue,qa_1", "--lengths=700,512", "--seed=5", "-o", tmp_path]
    status, out, _ = run(words, capsys)
    assert status == 0
    rows = rows_of(tmp_path)
    cells = [(length, task) for length in (512, 700) for task in ("niah_multivalue", "vt", "qa_1")]
    assert [(row["length"], row["task"]) for row in rows] == cells
    for row in rows:
        assert (row["model"], row["checkpoint"], row["consumed_tokens"]) == ("tiny", folder_name(4096), 4096)
        assert (row["protocol"], row["method"], row["precision"]) == ("ruler", "rope+plain", "float32")
        assert (row["n"], row["seed"], row["answer_budget"], row["version"]) == (3, 5, 40, 2)
        assert 0 <= row["low"] <= row["score"] <= row["high"] <= 100
        assert row["seconds"] > 0
        assert {"python", "torch"} & set(row["versions"])
        assert len(row["commit"]) in (40, len("unknown"))
        assert row["hardware"]
        standin = {"niah_multivalue": ["essays"], "vt": [], "qa_1": ["squad"]}[row["task"]]
        assert row["standins"] == standin
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


def test_the_right_answers_score_100_in_all_13_tasks_at_a_length_with_room(run_folder, tmp_path, capsys, solved):
    status, out, _ = run([run_folder, "--tests=2", "-o", tmp_path], capsys)
    assert status == 0
    rows = rows_of(tmp_path)
    assert [row["task"] for row in rows] == [task.name for task in ALL]
    (length,) = {row["length"] for row in rows}
    assert length in (1024, 2048), "the first power of two with room, as the window is only 64"
    assert {row["score"] for row in rows} == {100.0}
    assert f"effective length {length:,} at threshold 85.6, over all 13 tasks" in out
    assert sum(solved) == 26


def test_other_weights_and_other_texts_are_measured_again(run_folder, tmp_path, capsys, solved, essays, prepared):
    from tests.opened import write_run

    words = ["--tests=2", "--tasks=niah_single_2", "--lengths=700", "-o", tmp_path / "out"]
    assert run([run_folder, *words], capsys)[0] == 0
    assert run([run_folder, *words, f"--haystack={essays}"], capsys)[0] == 0
    other = write_run(tmp_path / "tiny", prepared, std=0.3)
    assert run([other, *words], capsys)[0] == 0
    first, texts, weights = rows_of(tmp_path / "out")
    assert (first["source"], first["standins"], texts["standins"]) == ("standin", ["essays"], [])
    assert len(texts["source"]) == 16
    assert first["weights"] == texts["weights"] != weights["weights"]
    assert sum(solved) == 6


def test_scores_are_averaged_over_the_last_checkpoints(run_folder, tmp_path, capsys, solved):
    run_copy = tmp_path / "tiny"
    shutil.copytree(run_folder, run_copy, ignore=shutil.ignore_patterns("eval"))
    for tokens in (8192, 12288, 16384):
        save_weights(run_copy / "checkpoints", open_model(run_folder).decoder, tokens, keep=5)
    words = [run_copy, "--tests=2", "--tasks=vt,niah_multiquery", "--lengths=800"]
    status, out, _ = run([*words, "--last=3"], capsys)
    assert status == 0
    rows = rows_of(run_copy)
    assert [row["checkpoint"] for row in rows[::2]] == [folder_name(tokens) for tokens in (16384, 12288, 8192)]
    by_task = {task: [row["score"] for row in rows if row["task"] == task] for task in ("vt", "niah_multiquery")}
    assert by_task == {"niah_multiquery": [50.0, 50.0, 100.0], "vt": [40.0, 40.0, 100.0]}
    lines = [line.split() for line in out.splitlines()]
    assert ["niah_multiquery", "66.7"] in lines
    assert ["vt", "60.0"] in lines
    assert out.startswith("tiny: rope+plain, 2 tests each, mean of 3 checkpoints\n")
    kept = json.loads((run_copy / "ruler_summary.json").read_text())
    assert kept["averages"]["800"]["average"] == pytest.approx((200 / 3 + 60) / 2)
    status, out, err = run([*words, "--last=5"], capsys)
    assert (status, out) == (2, "")
    assert err == (
        f"--last=5: {run_copy} keeps 4 whole checkpoints; lower it, or train with a higher train.keep_checkpoints\n"
    )
    (run_copy / "checkpoints" / folder_name(8192) / "state.ckpt").write_bytes(b"broken")
    assert "keeps 3 whole checkpoints" in run([*words, "--last=4"], capsys)[2]


def test_a_checkpoint_and_a_hugging_face_folder_are_measured(run_folder, hugging_face_folder, tmp_path, capsys):
    words = [*QUICK, "--tasks=vt", "--lengths=512"]
    place = run_folder / "checkpoints" / folder_name(4096)
    assert run([place, *words, "-o", tmp_path / "a"], capsys)[0] == 0
    assert rows_of(tmp_path / "a")[0]["checkpoint"] == folder_name(4096)
    status, _, err = run([hugging_face_folder, *words, "-o", tmp_path / "b"], capsys)
    assert status == 0, err
    (row,) = rows_of(tmp_path / "b")
    assert (row["model"], row["checkpoint"], row["consumed_tokens"]) == ("small-llama", None, None)
    methods = ["--position.distance.method=rerope", "--position.distance.window=60"]
    assert run([hugging_face_folder, *words, *methods, "-o", tmp_path / "b"], capsys)[0] == 0
    assert [row["method"] for row in rows_of(tmp_path / "b")] == ["rope+plain", "rope+rerope(window=60)"]


def test_eos_of_a_config_is_read():
    assert [first_id(value) for value in (2, [128001, 128009], None, [], "x")] == [2, 128001, None, None, None]


MISTAKES = {  # words: every fault's field, value and rule
    "--tests=3": ("--tests=3: MODEL must be the first argument;",),
    "RUN --tests": ("--tests: has no value;",),
    "RUN words": ("words: no such folder;",),
    "RUN --tetss=3": ("--tetss=3: unknown setting;",),
    "RUN --tests=0 --seed=-1": ("--tests=0: must be >= 1;", "--seed=-1: must be >= 0;"),
    "RUN --tasks=vt,niah_singel_1,zzz": (
        "--tasks=niah_singel_1: no such task; did you mean niah_single_1?",
        "--tasks=zzz: no such task; use some of: " + ", ".join(task.name for task in ALL),
    ),
    "RUN --tasks=vt,vt --lengths=512,512": ("--tasks=vt: is given twice;", "--lengths=512: is given twice;"),
    "RUN --tasks=vt --haystack=x.txt --squad=y.json": (
        "--haystack=x.txt: would be ignored by these tasks;",
        "--squad=y.json: would be ignored by these tasks;",
    ),
    "RUN --plot=yes": ("--plot: takes no value;",),
    "RUN --threshold=101": ("--threshold=101: must be <= 100;",),
    "RUN --haystack=/nowhere": ("--haystack=/nowhere: no such file;",),
    "RUN --haystack=EMPTY": ("--haystack=EMPTY: holds no .txt, .json or .jsonl file;",),
    "RUN --squad=/nowhere": ("--squad=/nowhere: no such file;",),
    "RUN --hotpotqa=BROKEN": ("--hotpotqa=BROKEN: is not of HotpotQA's form (KeyError('context'));",),
    "RUN --squad=NONE": ("--squad=NONE: holds no question with an answer;",),
    "RUN --tests=61 --squad=SQUAD --lengths=4096 --tasks=qa_1": ("--squad=SQUAD: has 60 questions;",),
    "RUN --tasks=vt --answer_budget=3 --tests=2": ("--answer_budget=3: an answer to vt takes ",),
    "RUN --tasks=vt,fwe --lengths=100 --tests=2": (
        "--lengths=100: too short for vt, whose fixed parts take ",
        "--lengths=100: too short for fwe, whose fixed parts take ",
    ),
    "RUN --tests=2 --tasks=vt --lengths=512 -o /dev/null/x": ("-o /dev/null/x: cannot be written (Not a directory);",),
    "/nowhere": ("/nowhere: no such folder;",),
    "CHECKPOINT --last=2": ("--last=2: CHECKPOINT is not a run folder with checkpoints;",),
    "NO_WEIGHTS --tasks=vt": ("NO_WEIGHTS: holds no ",),
    "NO_TOKENIZER --tasks=vt": ("tokenizer.json: missing;",),
}


@pytest.mark.parametrize(("words", "lines"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_one_line_per_fault(run_folder, hugging_face_folder, squad, tmp_path, capsys, words, lines):
    places = {
        "RUN": run_folder,
        "CHECKPOINT": run_folder / "checkpoints" / folder_name(4096),
        "LLAMA": hugging_face_folder,
        "SQUAD": squad,
        "EMPTY": tmp_path / "empty",
        "BROKEN": tmp_path / "broken.json",
        "NONE": tmp_path / "none.json",
        "NO_WEIGHTS": tmp_path / "no_weights",
        "NO_TOKENIZER": tmp_path / "no_tokenizer",
    }
    places["EMPTY"].mkdir()
    places["BROKEN"].write_text('[{"question": "Who?"}]')
    places["NONE"].write_text('{"data": []}')
    shutil.copytree(hugging_face_folder, places["NO_WEIGHTS"], ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(hugging_face_folder, places["NO_TOKENIZER"], ignore=shutil.ignore_patterns("tokenizer*"))
    named = {name: str(place) for name, place in places.items()}
    given = [
        key + equals + named.get(value, value) for key, equals, value in (w.rpartition("=") for w in words.split())
    ]
    status, out, err = run(given, capsys)
    assert (status, out) == (2, "")
    said = [line for line in err.splitlines() if line and not line.startswith("ruler: ")]
    expected = [
        next((line.replace(n, p) for n, p in named.items() if n in line and n != "RUN"), line) for line in lines
    ]
    check_faults(said, expected)


def test_a_model_with_fewer_ids_than_the_tokenizer_is_refused(hugging_face_folder, tmp_path, capsys, merging):
    folder = tmp_path / "small"
    shutil.copytree(hugging_face_folder, folder)
    merging.save(str(folder / "tokenizer.json"))
    status, out, err = run([folder, "--tasks=vt", "--lengths=512", "--tests=2"], capsys)
    assert (status, out) == (2, "")
    assert err.startswith("tokenizer.json: has more ids than the model's 400; ")
    assert err.count("\n") == 1


def test_the_precision_of_a_run_is_used(run_folder, tmp_path, capsys, monkeypatch):
    seen = []

    def greedy(decoder, prompts, n_tokens, stop_id, **options):
        seen.append((torch.is_autocast_enabled("cpu"), stop_id))
        return torch.full((len(prompts), 1), stop_id)

    monkeypatch.setattr(eval.engine.subject, "greedy", greedy)
    copy = tmp_path / "tiny"
    shutil.copytree(run_folder, copy, ignore=shutil.ignore_patterns("eval"))
    words = [copy, "--tests=1", "--tasks=vt", "--lengths=512"]
    assert run(words, capsys)[0] == 0
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config + "train: {precision: bf16}\n")
    assert run(words, capsys)[0] == 0
    assert seen == [(False, 1), (True, 1)]
    assert [row["precision"] for row in rows_of(copy)] == ["float32", "bfloat16"]
