"""A shape as a setting of a run: rules, whole runs, what they count, how they resume, and the command that plans."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eval.shape.__main__ import main
from lab.config import load_experiment
from lab.errors import ConfigError
from lab.settings import parse_overrides

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "cpu_test.yaml"
JOINED = ("--data.mode=concatenated",)
CHOOSE = ("--shape.target.exponent=0.85",)
PACK = ("--shape.target.exponent=0.85", "--shape.strategy.method=pack", *JOINED)
SKIP = (
    "--shape.target.method=bump",
    "--shape.strategy.method=skip",
    "--shape.strategy.target_len=240",
    "--shape.tolerance=0.1",
    *JOINED,
)
WEIGHTS = ("--shape.strategy.method=weights", "--shape.target.exponent=0.7")
LARGE = ("--data.corpus.documents=1500", "--probe.every_tokens=null", "--probe.loss_tokens=0", "--probe.tests=1")


def load(*words):
    return load_experiment(CONFIG, parse_overrides(words))


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (PACK[:2], ["data.mode=natural: shape.strategy.method=pack joins documents; set data.mode: concatenated"]),
        (
            (*CHOOSE, *JOINED),
            [
                "data.mode=concatenated: shape.strategy.method=choose draws documents as they are; set data.mode: "
                "natural"
            ],
        ),
        (
            (*CHOOSE, "--skip.method=pose", "--skip.target_len=200"),
            ["skip.method=pose: would be ignored, shape decides the ids; leave it out"],
        ),
        (
            (*PACK, "--mask.method=document"),
            ["mask.method=document: shape plans for mask: causal without chunks; leave the mask out"],
        ),
        (
            (*PACK, "--mask.chunks=2"),
            ["mask.chunks=2: shape plans for mask: causal without chunks; leave the mask out"],
        ),
        (
            (*SKIP[:2], "--shape.strategy.target_len=96", *JOINED),
            [
                "shape.strategy.target_len=96: must be > data.window=96, or there is nothing to skip; raise it",
            ],
        ),
        (
            (*WEIGHTS, "--skip.method=pose", "--skip.target_len=200"),
            ["skip.method=pose: weights count tokens, not ids with gaps; leave it out"],
        ),
        (
            (*WEIGHTS, *JOINED, "--mask.method=anchor"),
            ["mask.method=anchor: shape plans for mask: causal or document without chunks; leave the mask out"],
        ),
        (
            (*WEIGHTS, "--data.mode=uniform"),
            ["data.mode=uniform: shape.strategy.method=weights counts targets of documents or full windows; set"],
        ),
        (
            (*WEIGHTS, "--shape.strategy.max_weight=0.5"),
            ["shape.strategy.max_weight=0.5: must be >= 1"],
        ),
        (
            ("--shape.target.method=flat", "--shape.target.up_to=96"),
            ["shape.target.up_to=96: must be < 96, the longest distance plus one; leave it out"],
        ),
        (
            ("--shape.target.height=2.0",),
            ["shape.target.height=2.0: unknown setting; shape.target has method, exponent"],
        ),
        (
            ("--shape.strength=1.5",),
            ["shape.strength=1.5: must be <= 1; Share of the target"],
        ),
    ],
    ids=[
        *("mode", "joined", "skip", "mask", "chunks", "target_len", "weights_skip", "weights_mask", "weights_mode"),
        *("max_weight", "up_to", "unknown", "strength"),
    ],
)
def test_shapes_that_do_not_fit_the_run_are_refused(words, faults):
    with pytest.raises(ConfigError) as refused:
        load(*words)
    lines = str(refused.value).splitlines()
    assert [line[: len(fault)] for line, fault in zip(lines, faults, strict=True)] == faults


def test_the_counter_reaches_as_far_as_the_ids():
    assert load(*CHOOSE).reach == load(*PACK).reach == 96
    assert load(*SKIP).reach == 240


RUNS = {"choose": CHOOSE, "pack": PACK, "skip": SKIP, "weights": WEIGHTS}
RUN_ALL = """
import json, sys
from pathlib import Path
from lab.config import load_experiment
from lab.errors import LabError
from lab.session import run_experiment
from lab.settings import parse_overrides
config = Path(sys.argv[1])
for words, resume in json.loads(sys.argv[2]):
    try:
        run_experiment(load_experiment(config, parse_overrides(words)), resume, "again")
    except LabError as error:
        print("refused:", error)
"""


def run_all(place, *starts):
    """Start runs in one process, one after another: (name, settings, resume)."""
    where = [f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", *LARGE]
    words = [[[*where, f"--run.name={name}", *own], resume] for name, own, resume in starts]
    command = [sys.executable, "-c", RUN_ALL, str(CONFIG), json.dumps(words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def last_line(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Train every run of RUNS, and start one whose target is out of reach."""
    place = tmp_path_factory.mktemp("shapes")
    out = run_all(
        place,
        *((name, words, False) for name, words in RUNS.items()),
        ("flat", ("--shape.target.method=flat",), False),
    )
    (place / "out.txt").write_text("\n".join(out))
    return place


@pytest.mark.parametrize(("name", "tolerance"), [("choose", 0.03), ("pack", 0.03), ("skip", 0.1), ("weights", 0.03)])
def test_a_run_shows_about_what_was_planned(place, name, tolerance):
    """20,480 tokens are some 400 segments, so the profile counted is that of the plan up to their draw."""
    record = json.loads((place / "runs" / name / "shape.json").read_text())
    lines = (place / "out.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"shape: {name} for ")]
    assert f"total variation {record['total_variation']:.3f}" in line
    edges = np.array(record["edges"])
    f = np.load(place / "runs" / name / "counts.npz")["supervised_f" if name == "weights" else "f"]
    assert len(f) == edges[-1]
    profile = np.add.reduceat(f, edges[:-1]) / f[1:].sum()
    assert np.abs(profile - record["reached"]).sum() / 2 < tolerance
    assert record["shape"]["strategy"]["method"] == name
    assert record["cost"]["pairs_per_token"] > 0


def test_a_run_records_both_sides_of_f(place):
    weighed, chosen = (np.load(place / "runs" / name / "counts.npz") for name in ("weights", "choose"))
    for counts, name in ((weighed, "weights"), (chosen, "choose")):
        last = last_line(place / "runs" / name)
        weights = counts.get("weights", np.ones(96))
        for i in (12, 48, 72):
            (column,) = {f"supervised_f_{i}", f"supervised_f_at_{i / 96:g}L"} & last.keys()
            assert last[column] == pytest.approx(weights[i:] @ counts["supervised"][i:], rel=1e-12)
        assert counts["supervised"].sum() < counts["tokens"]
    assert chosen["supervised_f"].dtype == np.int64
    assert "weights" not in chosen
    np.testing.assert_array_less(chosen["supervised_f"], chosen["f"] + 1)
    assert weighed["supervised_f"][0] == pytest.approx(weighed["supervised"].sum(), rel=0.01), "mean weight 1"
    assert np.ptp(weighed["weights"]) > 0.5


def test_a_target_out_of_reach_is_one_line_before_training(place):
    lines = (place / "out.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("refused: ")]
    assert line.startswith("refused: shape.strength=1: choose comes within a total variation of 0.2")
    assert not (place / "runs" / "flat").exists()


def test_a_run_goes_on_only_with_the_plan_it_was_begun_with(place):
    starts = []
    for name, key in (("choose", "draws"), ("weights", "weights")):
        run, other = place / "runs" / f"begun_{name}", place / "runs" / f"other_{name}"
        shutil.copytree(place / "runs" / name, run)
        shutil.rmtree(sorted((run / "checkpoints").glob("tokens-*"))[-1])
        shutil.copytree(run, other)
        record = json.loads((other / "shape.json").read_text())
        record[key][0] += 1
        (other / "shape.json").write_text(json.dumps(record))
        starts += [(run.name, RUNS[name], True), (other.name, RUNS[name], True)]
    refused = [line for line in run_all(place, *starts) if line.startswith("refused: ")]
    for line, name in zip(refused, ("choose", "weights"), strict=True):
        record, runs = place / "runs" / f"other_{name}" / "shape.json", (name, f"begun_{name}")
        assert line.startswith(f"refused: {record}: the plan made now is another one")
        whole, again = (np.load(place / "runs" / run / "counts.npz") for run in runs)
        assert whole.files == again.files
        for key in whole:
            np.testing.assert_array_equal(whole[key], again[key])
        whole, again = (last_line(place / "runs" / run)["loss"] for run in runs)
        assert whole == again


def test_the_command_plans_and_draws(place, capsys):
    shards = (f"--data.folder={place / 'shards'}", *LARGE)
    for name, words in RUNS.items():
        picture = place / f"{name}.png"
        assert main([str(CONFIG), *words, *shards, "--plot", str(picture)]) == 0
        assert picture.stat().st_size > 10_000
        out = capsys.readouterr().out
        assert out.startswith(f"{name} for ")
        rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
        shares = [float(x.rstrip("%")) for x in rows["natural"][1:]]
        assert len(shares) == 4
        assert sum(shares) == pytest.approx(100, abs=0.3)
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--plot", "x.png", "--shape.strength=1"], "CONFIG: must be the first argument"),
        ([str(CONFIG)], "shape: must be set"),
        ([str(CONFIG), "--shape.target.exponent=-1"], "shape.target.exponent=-1: must be >= 0"),
        ([str(CONFIG), "--plot"], "--plot: has no value"),
    ],
    ids=["config", "shape", "exponent", "plot"],
)
def test_wrong_input_of_the_command_is_one_line(words, line, capsys):
    assert main(words) == 2
    (found,) = capsys.readouterr().err.splitlines()
    assert found.startswith(line)
