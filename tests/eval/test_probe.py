"""The command that probes a checkpoint."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from scipy.stats import beta

import eval.engine.subject
from eval.engine.depths import depth_rows, find_cell, third_rows
from eval.probe import main
from lab.counts import PositionCounts
from lab.data.tokenizer import end_of_document
from lab.loading import open_model
from lab.model.huggingface import save_pretrained
from lab.probe.config import ProbeConfig
from lab.probe.needles import shortest
from lab.runs.folder import packed_counts
from tests.eval.answering import Counted, silent
from tests.eval.commands import lines_of, runner, size_of
from tests.opened import CONSUMED, adopted

SMALL = {"--tests": "6", "--step": "64", "--max_length": "320", "--answer_budget": "24", "--batch": "2"}


@pytest.fixture
def probe(run_folder, tmp_path, capsys):
    """Run the command on a small run into a folder of its own; gives status, folder and what was printed."""

    def run(words="", model=run_folder, folder="out"):
        given = shlex.split(words)
        named = {word.partition("=")[0] for word in given}
        small = [f"{key}={value}" for key, value in SMALL.items() if key not in named]
        status = main([str(model), *small, *given, "-o", str(tmp_path / folder)])
        return status, tmp_path / folder, capsys.readouterr()

    return run


def untimed(folder):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in lines_of(folder, "probe")]


def test_writes_the_curve_the_summary_every_case_and_a_table(probe):
    status, folder, said = probe()
    assert status == 0
    *curve, summary = lines_of(folder, "probe")
    assert [r["length"] for r in curve] == [192, 256, 320]
    assert {(r["tests"], r["passed"], r["protocol"]) for r in curve} == {(6, 0, "ours")}
    assert {r["consumed_tokens"] for r in (*curve, summary)} == {CONSUMED}
    assert (summary["effective_length"], summary["low"], summary["high"], summary["threshold"]) == (None, 0, 0, 0.8)
    assert (summary["first_length"], summary["f_at_effective_length"], curve[0]["f"]) == (192, None, None)
    assert len(lines_of(folder, "probe", tests=True)) == 18
    assert re.search(r"192 +0 +6 +0\.000 +0\.000 to 0\.459", said.out)
    assert "effective length <192 at threshold 0.8, within <192 to <192; smooth <192, within <192 to <192" in said.out
    (file,) = folder.iterdir()
    assert f"written to {file}\n" in said.out


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
    assert [row["f"] for row in lines_of(folder, "probe")[:-1]] == [58 + 1, 0, None]  # at 192, 256, 320


@pytest.fixture
def quiet(monkeypatch):
    """Let tests that are of other things than answers go without a model."""
    monkeypatch.setattr(eval.engine.subject, "greedy", silent)


def test_other_settings_take_up_only_tests_that_come_out_the_same(probe, monkeypatch, tmp_path):
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
    rerope = "--position.distance.method=rerope --position.distance.window=9"
    for other in ("--seed=1", "--digits=2", "--needles=3", "--answer_budget=25", rerope):
        assert ran(f"{other} --max_length=192") == 6
    for end in ("end", "other"):  # texts that begin alike
        (tmp_path / f"{end}.txt").write_text("word " * 5000 + end)
        assert ran(f"--haystack={tmp_path / end}.txt --max_length=192") == 6


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
        assert lines_of(folder, "probe", tests=True) == lines_of(tmp_path / "run", "probe", tests=True)
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
    (row, summary) = lines_of(tmp_path / "results" / "probe-tiny-llama", "probe")
    tokenizer = open_model(exported).tokenizer
    least = shortest(ProbeConfig(answer_budget=36), tokenizer)
    assert row["length"] == -(-least // 17) * 17 != -(-least // 34) * 34
    assert (row["needles"], row["digits"], summary["effective_length"]) == (4, 6, None)


THIRDS = ["0-33%", "33-66%", "66-99%"]


def test_a_needle_stays_in_its_own_part():
    """Cells of 0.99 / 8: the second needle's depths begin at 0.2475."""
    assert [find_cell(depth, 1, 4, 8) for depth in (0.2475, 0.3712, 0.3713, 0.4949)] == [2, 2, 3, 3]
    assert [find_cell(depth, 1, 4, 8) for depth in (0.2, 0.247, 0.495, 0.5)] == [2, 2, 3, 3]  # as roundings leave them
    assert [find_cell(depth, 0, 1, 10) for depth in (0.0, 0.098, 0.1, 0.5, 0.9899, 0.99)] == [0, 0, 1, 5, 9, 9]


def row_of(test, depths, hits):
    return {"length": 64, "test": test, "depths": depths, "found_each": hits}


TESTS = [
    row_of(1, [0.1, 0.4, 0.6, 0.9], [0, 1, 1, 1]),
    row_of(2, [0.2, 0.3, 0.7, 0.8], [0, 0, 1, 1]),
    row_of(3, [0.0, 0.3, 0.5, 0.98], [1, 1, 1, 1]),
    row_of(4, [0.1, 0.4, 0.6, 0.8], [1, 1, 1, 0]),
]


def test_depths_by_hand():
    rows = depth_rows(TESTS, 8)
    assert [row["n"] for row in rows] == [3, 1, 2, 2, 3, 1, 2, 2]
    assert [row["found"] for row in rows] == [2, 0, 1, 2, 3, 1, 1, 2]
    assert [row["score"] for row in rows[:3]] == [2 / 3, 0.0, 0.5]
    assert [(row["from_depth"], row["to_depth"]) for row in rows[:2]] == [(0.0, 0.12375), (0.12375, 0.2475)]
    for row in rows:  # Clopper, Pearson
        n, k = row["n"], row["found"]
        low, high = (beta.ppf(0.025, k, n - k + 1) if k else 0.0), (beta.ppf(0.975, k + 1, n - k) if k < n else 1.0)
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-9)
    empty = depth_rows(TESTS[:1], 12)[0]
    assert (empty["n"], empty["score"], empty["low"], empty["high"]) == (0, None, None, None)


def test_thirds_by_hand():
    rows = third_rows(TESTS, 0)
    assert [row["third"] for row in rows] == THIRDS
    assert [(row["n"], row["failures"]) for row in rows] == [(3, 2), (3, 0), (3, 1)]  # one of each test that misses any
    assert [row["score"] for row in rows] == [2 / 3, 0, 1 / 3]
    nothing = third_rows(TESTS[2:3], 0)
    assert [(row["n"], row["score"]) for row in nothing] == [(0, None)] * 3


def test_the_missed_number_that_counts_is_drawn_evenly_and_by_the_tests_own_seed():
    tests = [row_of(k, [0.1, 0.4, 0.6, 0.9], [0, 0, 1, 0]) for k in range(1200)]
    rows = third_rows(tests, 5)
    assert min(row["failures"] for row in rows) > 320  # five standard deviations
    assert max(row["failures"] for row in rows) < 480
    halves = [third_rows(part, 5) for part in (tests[600:], tests[:600])]
    assert [a["failures"] + b["failures"] for a, b in zip(*halves, strict=True)] == [row["failures"] for row in rows]
    assert third_rows(tests, 6) != third_rows(tests, 5)


run = runner(main, "probe")
BY_DEPTH = ["--by=depth", "--lengths=320,200", "--tests=3", "--answer_budget=24"]


def test_the_command_writes_rows_tables_and_a_picture(run_folder, tmp_path, capsys, monkeypatch):
    pytest.importorskip("altair")
    Counted(monkeypatch, greedy=silent)
    status, out, _ = run([run_folder, *BY_DEPTH, "--plot", "-o", tmp_path], capsys)
    assert status == 0
    rows = lines_of(tmp_path, "probe")
    cells = [row for row in rows if row["metric"] == "found_by_depth"]
    assert [row["length"] for row in cells] == [200] * 12 + [320] * 12
    same = {"tests": 3, "found": 0, "model": "tiny", "method": "rope+plain", "seed": 0, "depths": 12}
    assert all(row.items() >= same.items() for row in cells)
    assert sum(row["n"] for row in cells) == 2 * 3 * 4
    thirds = [row for row in rows if row["metric"] == "failures_by_third"]
    assert [(row["length"], row["third"]) for row in thirds] == [(n, third) for n in (200, 320) for third in THIRDS]
    assert {(row["n"], row["accuracy"]) for row in thirds} == {(3, 0.0)}
    assert out.startswith("tiny: rope+plain; protocol ours, 3 tests a length\n")
    assert size_of(Path(out.splitlines()[-1].removeprefix("picture: ")))[0] > 500


def test_tests_of_the_probe_are_shared(run_folder, tmp_path, capsys, monkeypatch):
    counted, words = Counted(monkeypatch, greedy=silent), [run_folder, *BY_DEPTH, "-o", tmp_path]
    settings = ["--tests=2", "--step=320", "--max_length=320", "--answer_budget=24"]
    assert run([run_folder, *settings, "-o", tmp_path], capsys)[0] == 0
    assert (run(words, capsys)[0], counted.prompts) == (0, 6), "four beside the probe's two"
    assert (run([*words, "--depths=4", "--required=3"], capsys)[0], counted.prompts) == (0, 6)
    assert (run([*words, "--seed=1"], capsys)[0], counted.prompts) == (0, 12)
