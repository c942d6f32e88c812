"""The command that measures effective distance."""

import itertools
import json
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest

from eval.distance import main
from lab.counts import SavedCounts
from lab.data.preparation import prepare
from lab.positions import distance as method
from lab.probe.effective_distance import map_counts_to_distance
from tests.eval.commands import lines_of, rows_in, words_of
from tests.opened import write_run

GRID = "--points=3 --tests=4 --batch=3"
METHODS = "--distance=plain --distance string:shift=40,window=8"


@pytest.fixture(scope="module")
def wide_run(prepared, tmp_path_factory):
    """A small run with a window that a one-number test fits into, whose checkpoint has counted."""
    wide = replace(prepared, window=128)
    prepare(wide, progress=False)
    return write_run(tmp_path_factory.mktemp("wide") / "wide", wide)


@pytest.fixture
def distance(wide_run, tmp_path, capsys):
    """Run the command into a folder of its own; gives status, folder and what was printed."""

    def run(words="", grid=GRID, folder="out"):
        status = main([str(wide_run), *shlex.split(f"{grid} {words}"), "-o", str(tmp_path / folder)])
        return status, tmp_path / folder, capsys.readouterr()

    return run


def rows_of(folder):
    return lines_of(folder, "distance")


def test_every_method_gets_the_same_tests_and_a_table(distance):
    status, folder, said = distance(METHODS)
    assert (status, said.err.count("Traceback")) == (0, 0)
    rows = rows_of(folder)
    methods, metrics = ("rope+plain", "rope+string(shift=40,window=8)"), ["found_by_distance"] * 3 + ["reach"]
    assert [(row["method"], row["metric"]) for row in rows] == [*itertools.product(methods, metrics)]
    assert {(row["n"], row["needles"], row["f"]) for row in rows if "distance" in row} == {(4, 1, None)}
    assert all(row["reach"] is None and row["reach_high"] is not None for row in rows if row["metric"] == "reach")
    (key, *one), (other_key, *other) = map(rows_in, folder.glob("distance-*.jsonl"))
    assert key["key"]["method"] != other_key["key"]["method"]
    one, other = ([row for row in rows if "test" in row] for rows in (one, other))
    asked = [[(row["distance"], row["test"], row["prompt_hash"]) for row in rows] for rows in (one, other)]
    assert asked[0] == asked[1]
    assert [row["log_prob"] for row in one] != [row["log_prob"] for row in other]
    table = [words for words in words_of(said.out) if words[:1] == [f"{rows[0]['distance']}"]]
    # three-digit numbers from 100 on: 900 of them, so that a guess has ln(1 / 900) = -6.8024
    gains = [f"{row['log_prob'] + 6.8024:+.2f}" for row in (rows[0], rows[4])]
    assert [words[-2] for words in table] == gains
    assert (said.out.count("0 of 12 numbers found"), said.out.count("run probe-lab recall")) == (2, 2)
    assert (said.out.count("fails at 32 tokens already"), f"written to 2 files in {folder}" in said.out) == (2, True)


def test_a_window_of_its_own_is_filled_beyond_the_one_of_training(distance):
    budget = 128 - rows_of(distance("--distances=70", "--tests=1")[1])[0]["prompt_tokens"]
    words = ("--window=192 --distances=70,160 --tests=2", "--distance=plain --distance=string:shift=128,window=64")
    status, folder, _ = distance(*words, folder="own_window")
    found = [row for row in rows_of(folder) if row["metric"] == "found_by_distance"]
    assert status == 0
    assert [(row["distance"], row["prompt_tokens"]) for row in found] == [(70, 192 - budget), (160, 192 - budget)] * 2


def test_a_grid_measures_every_prompt_length_as_a_call_with_that_window_does(distance):
    """The window of 128 keeps its rows and reach; each other length has rows of the distances that it has room for."""
    status, folder, said = distance("--prompts=96,128,64 --plot", "--distances=32,60,90 --tests=3", folder="grid")
    rows = rows_of(folder)
    cells = [(row["prompt"], row["distance"]) for row in rows if row["metric"] == "found_by_prompt"]
    assert (status, cells) == (0, [(64, 32), (96, 32), (96, 60)])
    assert [row["distance"] for row in rows if row["metric"] == "found_by_distance"] == [32, 60, 90]
    assert sum(row["metric"] == "reach" for row in rows) == 1
    table = [" ".join(line) for line in words_of(said.out) if line[0] in ("prompt", "128", "96", "64")]
    assert table == ["prompt 32 60 90", "128 0.00 0.00 0.00", "96 0.00 0.00 -", "64 0.00 - -"]
    assert next(folder.glob("*.png")).stat().st_size > 0
    for length, distances in ((96, "32,60"), (64, "32")):
        own = rows_of(distance(f"--window={length}", f"--distances={distances} --tests=3", folder=f"own{length}")[1])
        known = [(row["log_prob"], row["prompt_tokens"]) for row in own if row["metric"] == "found_by_distance"]
        assert known == [(row["log_prob"], row["prompt_tokens"]) for row in rows if row.get("prompt") == length]


def test_a_prompt_length_without_room_is_an_error(distance):
    status, _, said = distance("--prompts=96,40", "--distances=32,60 --tests=3")
    assert status == 2
    assert said.err.startswith("--prompts=40: has no room for a distance of 32; use ")
    least = said.err.split("use ")[1].split()[0]
    assert distance(f"--prompts={least}", "--distances=32,60 --tests=3", folder="least")[0] == 0
    assert distance(f"--prompts={int(least) - 1}", "--distances=32,60 --tests=3", folder="less")[0] == 2


def test_revisions_of_a_public_series_are_measured_in_turn(foreign, text_file, tmp_path, monkeypatch, capsys):
    hub = pytest.importorskip("huggingface_hub")
    home = tmp_path / "hub" / "models--owner--neox"
    (home / "refs").mkdir(parents=True)
    for step in (2, 10):
        (home / "refs" / f"step{step}").write_text(f"{step:040d}")
        shutil.copytree(foreign("gpt_neox", step), home / "snapshots" / f"{step:040d}")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    words = ["hf:owner/neox@step*", f"--haystack={text_file}", *GRID.split(), "--distance=plain,rerope:window=9"]
    assert main([*words, "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["metric"] == "found_by_distance"]
    methods = ["rope+plain"] * 3 + ["rope+rerope(window=9)"] * 3
    steps = ["neox@step2"] * 6 + ["neox@step10"] * 6
    assert [(row["model"], row["method"]) for row in rows] == [*zip(steps, 2 * methods, strict=True)]
    assert len({row["log_prob"] for row in rows}) == 12
    assert {row["digits"] for row in rows} == {6}
    assert main([str(foreign("gpt2")), *words[1:-1], "--distance=plain,dca"]) == 2
    assert capsys.readouterr().err.startswith("model=GPT2LMHeadModel: has no rotary embedding that all layers share; ")


def test_f_is_that_of_the_position_which_the_method_gives():
    """STRING with S = 4 and W = 1 gives distance 4 the position 1, and 9 the position 6, which was not counted."""
    f = np.array([100, 90, 80, 70, 60, 50])
    counts = SavedCounts(np.zeros(7, dtype=np.int64), f, 100)
    assert map_counts_to_distance(counts, method("plain"), 10).f.tolist() == f.tolist()
    string = map_counts_to_distance(counts, method("string", shift=4, window=1), 10).f.tolist()
    assert string == [100, 90, 80, 70, 90, 80, 70, 60, 50]
    leaky = map_counts_to_distance(counts, method("leaky_rerope", window=2, leak=2), 5).f.tolist()
    assert leaky == [100, 90, 80, 75, 70]  # 2 + (3 - 2) / 2 = 2.5, half way between 80 and 70
