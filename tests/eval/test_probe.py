"""The command that probes a checkpoint."""

import json
import re
import shlex
import shutil

import pytest

import eval.engine.subject
from eval.probe import main
from lab.counts import PositionCounts
from lab.data.tokenizer import end_of_document
from lab.loading import open_model
from lab.model.huggingface import save_pretrained
from lab.probe.config import ProbeConfig
from lab.probe.needles import shortest
from lab.runs.folder import packed_counts
from tests.eval.answering import Counted, silent
from tests.eval.commands import rows_in as lines
from tests.opened import CONSUMED, adopted

SMALL = {"--tests": "6", "--step": "64", "--max_length": "320", "--answer_budget": "24", "--batch": "2"}
CASES = f"cases/tokens-{CONSUMED:015d}.jsonl"


@pytest.fixture
def probe(run_folder, tmp_path, capsys):
    """Run the command on a small run into a folder of its own; gives status, folder and what was printed."""

    def run(words="", model=run_folder, folder="out"):
        output = ["-o", str(tmp_path / folder)] if folder else []
        given = shlex.split(words)
        named = {word.partition("=")[0] for word in given}
        small = [f"{key}={value}" for key, value in SMALL.items() if key not in named]
        status = main([str(model), *small, *given, *output])
        return status, tmp_path / str(folder), capsys.readouterr()

    return run


def untimed(folder):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in lines(folder / "probes.jsonl")]


def test_writes_the_curve_the_summary_every_case_and_a_table(probe):
    status, folder, said = probe()
    assert status == 0
    *curve, summary = lines(folder / "probes.jsonl")
    assert [r["length"] for r in curve] == [192, 256, 320]
    assert {(r["tests"], r["passed"], r["verdict"], r["protocol"]) for r in curve} == {(6, 0, "fail", "ours")}
    assert {r["consumed_tokens"] for r in (*curve, summary)} == {CONSUMED}
    assert (summary["effective_length"], summary["low"], summary["high"], summary["threshold"]) == (None, 0, 0, 0.8)
    assert (summary["first_length"], summary["f_at_effective_length"], curve[0]["f"]) == (192, None, None)
    assert len(lines(folder / CASES)) == 18
    assert re.search(r"192 +0 +6 +0\.000 +0\.000 to 0\.459", said.out)
    assert "effective length <192 at threshold 0.8, within <192 to <192; smooth <192, within <192 to <192" in said.out
    assert f"written to {folder}" in said.out
    assert sorted(path.name.partition("-")[0] for path in folder.iterdir()) == ["cases", "probes.jsonl", "tests"]


@pytest.mark.usefixtures("quiet")
def test_f_is_that_of_the_checkpoint(probe, run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    counts = PositionCounts(257)
    counts.add_segments([250, 193])
    (checkpoint,) = (run / "checkpoints").iterdir()
    (checkpoint / "counts.npz").write_bytes(packed_counts(counts))
    adopted(run)
    counts.add_segments([256])
    (run / "counts.npz").write_bytes(packed_counts(counts))  # at the end, after the checkpoint
    status, folder, _ = probe(model=run)
    assert status == 0
    assert [row["f"] for row in lines(folder / "probes.jsonl")[:-1]] == [58 + 1, 0, None]  # at 192, 256, 320


@pytest.fixture
def quiet(monkeypatch):
    """Let tests that are of other things than answers go without a model."""
    monkeypatch.setattr(eval.engine.subject, "greedy", silent)


def test_other_settings_take_up_only_tests_that_come_out_the_same(probe, monkeypatch):
    counted = Counted(monkeypatch, greedy=silent)
    assert probe()[0] == 0

    def ran(words):
        before = counted.prompts
        assert probe(words)[0] == 0
        return counted.prompts - before

    assert ran("--threshold=0.5 --required=1 --batch=5") == 0
    assert ran("--tests=8") == 6  # two more at each of three lengths
    assert ran("--max_length=384") == 6
    assert ran("--step=32") == 18  # 160, 224 and 288 are new
    assert ran("--sequential --tests=8") == 0
    for other in ("--seed=1", "--digits=2", "--needles=3", "--answer_budget=25"):
        assert ran(f"{other} --max_length=192") == 6
    assert ran("--position.distance.method=rerope --position.distance.window=9 --max_length=192") == 6


def test_another_text_takes_up_nothing_even_where_it_begins_alike(probe, monkeypatch, tmp_path):
    counted = Counted(monkeypatch, greedy=silent)
    for n, end in enumerate(("end", "other"), start=1):
        path = tmp_path / f"{end}.txt"
        path.write_text("word " * 5000 + end)
        assert probe(f"--haystack={path}")[0] == 0
        assert counted.prompts == 18 * n


def test_a_text_that_a_test_would_hold_twice_is_refused(probe, bpe, tmp_path):
    path = tmp_path / "short.txt"
    tokens = len(bpe.encode("word " * 40, add_special_tokens=False).ids)
    path.write_text("word " * 40)
    status, folder, said = probe(f"--haystack={path}")
    assert status == 2
    rule = rf"has {tokens} tokens, a test of 320 has \d+ of them, some repeated; give a longer text, or shorter lengths"
    assert re.fullmatch(rf"--haystack={path}: {rule}\n", said.err)
    assert not folder.exists()


@pytest.fixture
def exported(run_folder, tmp_path):
    """The run's weights as a Hugging Face folder."""
    model = open_model(run_folder)
    folder = tmp_path / "tiny-llama"
    save_pretrained(model.decoder, folder, train_len=136)
    model.tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "config.json").read_text())
    stop = end_of_document(model.experiment.data, model.tokenizer)
    (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": stop}))
    return folder


def test_a_hugging_face_folder_answers_as_the_run_it_came_from(probe, exported, text_file, monkeypatch, tmp_path):
    sizes = f"--haystack={text_file} --needles=4 --digits=3"
    for words in (sizes, f"{sizes} --position.distance.method=rerope --position.distance.window=9"):
        assert probe(words, folder="run")[0] == 0
        status, folder, said = probe(words, model=exported)
        assert status == 0
        assert lines(folder / "cases/tokens-000000000000000.jsonl") == lines(tmp_path / "run" / CASES)
        theirs, ours = untimed(folder), untimed(tmp_path / "run")
        apart = {"model": "tiny-llama", "consumed_tokens": None, "checkpoint": None}
        assert theirs == [{**row, **apart, "weights": theirs[0]["weights"]} for row in ours]
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            assert probe(words, model=exported)[2].out == said.out
            assert counted.prompts == 0


def test_a_hugging_face_folder_is_probed_in_eighths_of_its_window(probe, exported, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(exported), f"--haystack={text_file}", "--tests=1", "--answer_budget=36"]) == 0
    folder = next((tmp_path / "results" / "probe-tiny-llama").glob("probe-*"))
    (row, summary) = lines(folder / "probes.jsonl")
    tokenizer = open_model(exported).tokenizer
    least = shortest(ProbeConfig(answer_budget=36), tokenizer)
    assert row["length"] == -(-least // 17) * 17 != -(-least // 34) * 34
    assert (row["needles"], row["digits"], summary["effective_length"]) == (4, 6, None)
