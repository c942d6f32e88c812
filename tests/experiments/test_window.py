"""The experiments on windows and on equal demand: their plans, and results from records made by hand."""

import hashlib
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from docs.figures import plot_findings
from experiments.window import __main__ as command
from experiments.window.plans import STAGES, evaluation_options, plan_base, plan_branches, plan_run
from experiments.window.results import open_records, print_results
from lab.analysis.table import pack
from lab.core.errors import ConfigError
from lab.core.yaml import format_yaml
from tests.eval.commands import size_of
from tests.forked import ROOT


def test_branches_start_from_their_base_and_share_its_order(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    base = plan_base("W_1M", 2, tmp_path)
    base.path.mkdir()
    (base.path / "config.yaml").write_text(base.experiment.to_yaml())
    (base.path / "tokenizer.json").write_text("{}")
    branches = [run.experiment for run in plan_branches("W_1M", 2, base, tmp_path)]
    assert [branch.data.window for branch in branches] == [128, 192, 384, 768]
    for branch in branches:
        assert Path(branch.start.path) == base.path
        assert (branch.run.seed, branch.data.corpus) == (102, base.experiment.data.corpus)
        assert (branch.train.tokens, base.experiment.train.tokens) == (1_000_000, 4_000_000)
    options = evaluation_options("W_1M", plan_branches("W_1M", 2, base, tmp_path)[1])
    assert options[:2] == ["--distances=24,48,72,96,112,144,176", "--prompts=128"]
    assert "--distance=string:shift=96,window=32" in options
    assert "--seed=2" in options
    first = ["W_1M", "W_larger", "D", "size_2M", "size_6M", "scratch"]
    assert [name for name in STAGES if command.is_first(name)] == first


def test_every_run_is_signed_before_it_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    base = plan_base("W_1M", 0, tmp_path)
    command.sign(base, STAGES["W_1M"])
    predictions = (ROOT / "experiments/window/predictions_windows.md").read_bytes()
    signed = json.loads((base.path / "provenance.json").read_text())
    assert signed["sha256"] == hashlib.sha256(predictions).hexdigest()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    assert f"model name\t: {signed['processor']['model name']}" in lines
    assert f"model\t\t: {signed['processor']['model']}" in lines


def test_tests_that_are_stopped_halfway_stop_the_command_and_are_not_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    interpreter = tmp_path / "python"
    interpreter.write_text('#!/bin/sh\nmkdir -p "$3/eval"\necho {} > "$3/eval/distance-1.jsonl"\nexit 75\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(command.sys, "executable", str(interpreter))
    monkeypatch.setattr(command, "is_trained", lambda experiment: True)
    for _ in range(2):
        with pytest.raises(SystemExit, match="75"):
            command.train_and_test("W_1M", [plan_base("W_1M", 0, tmp_path)], 1)


def record(place, name, window, scores):
    """Write a run's records: `scores` by distance under every method, or plain only, of 50 tests each."""
    run = place / name
    (run / "eval").mkdir(parents=True)
    config = {"run": {"name": name}, "data": {"window": window}, "train": {"tokens": 1_000_000}}
    (run / "config.yaml").write_text(format_yaml(config))
    zeros = np.zeros(window + 1, dtype=np.int64)
    np.savez(run / "counts.npz", lengths=zeros, f=np.full(window, 7), tokens=1, g=np.full(window, 2))
    rows = []
    for method, by_distance in scores.items():
        about = {"metric": "found_by_distance", "method": method, "n": 50}
        for distance, score in by_distance.items():
            rows.append({**about, "distance": distance, "found": round(50 * score), "score": score})
    (run / "eval" / "distance-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def lines_of(records, capsys, out=None):
    print_results(records)
    if out is not None:
        plot_findings(records, out)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_equal_demand_is_equal_within_the_margin_or_open(tmp_path, capsys):
    """Differences of a mean of 0 are equal within .1; those of .14 refute, and those of .07 do neither."""
    shifts, verdicts = (0.02, -0.02, 0.04, -0.04, 0.0), []
    for more in (0.0, 0.14, 0.07):
        runs, place = [], tmp_path / f"{more}"
        for seed, shift in enumerate(shifts):
            for branch, score in (("A", 0.8 + shift + more), ("B", 0.8)):
                scores = {"rope+plain": {72: score, 120: score, 168: 0.5}}
                runs.append(record(place, f"S2-{seed}-{branch}", 192, scores))
        pack(runs, place / "S2.jsonl.xz")
        verdicts += [line for line in lines_of(open_records(place), capsys, tmp_path) if line.startswith("S2a")]
    assert [line.rsplit(" ", 1)[1] for line in verdicts] == ["equal", "refuted", "open"]
    half = stats.t.ppf(0.975, 4) * np.std(shifts, ddof=1) / math.sqrt(5)
    assert f" 5 0.000 {-half:.3f} {half:.3f} " in verdicts[0]


def test_far_accuracy_falls_as_the_window_doubles(tmp_path, capsys):
    """Means of .9, .5 and .1: shown at 192 to 384; of three seeds there is no verdict."""
    for n in (5, 3):
        runs = []
        for seed, (window, score) in itertools.product(range(n), ((192, 0.9), (384, 0.5), (768, 0.1))):
            shift = 0.02 * (seed - 2) * (window == 192)
            scores = {window // 4: 1.0, window // 2: score + shift, window // 2 + 9: score}
            methods = ["rope+plain", *(f"rope+method {number} of {window}" for number in range(4))]
            runs.append(record(tmp_path / f"{n}", f"W_1M-{seed}-{window}", window, dict.fromkeys(methods, scores)))
        pack(runs, tmp_path / f"{n}/W_1M.jsonl.xz")
    (first, _) = (line for line in lines_of(open_records(tmp_path / "5"), capsys, tmp_path) if line.startswith("W1"))
    assert min(size_of(tmp_path / "findings.png")) > 300
    assert first.startswith("W1: far accuracy, 192 less 384 5 0.400 ")
    assert first.endswith(" shown")
    lines = lines_of(open_records(tmp_path / "3"), capsys)
    assert [line for line in lines if line.startswith("W") and ":" in line and not line.endswith("described")] == []
    with pytest.raises(ConfigError, match="has no records"):
        open_records(tmp_path)


def test_the_tables_of_the_page_are_those_of_the_records(capsys):
    print_results(open_records(ROOT / command.RECORDS))
    printed = capsys.readouterr().out
    below = (ROOT / "docs/findings.md").read_text("utf-8").split("\n## Results\n")[1]
    # The bands and verdicts of D, L, N and the sizes; what else is printed is not on the page.
    shown = "\n\n".join(printed.split("\n\n")[-2:])
    lines = [line for line in shown.split("\n") if not re.match("S2|W|L, W|.* described$", line)]
    assert below.split("```")[1] == "\n" + "\n".join(lines), "copy what python -m experiments.window --results prints"
    assert max(map(len, printed.splitlines())) <= 120


def test_a_base_is_continued_until_it_has_acquired_retrieval_or_its_seed_is_not_used(tmp_path, monkeypatch):
    """Of seeds 10 to 12 the first finds half at once, the second never, the third in its second continuation."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "RECORDS", tmp_path)
    monkeypatch.setattr(command, "RUNS", tmp_path / "runs")
    trained = []

    def train(name, runs, jobs):
        for run in runs:
            trained.append(run.path.name)
            late = {"W-12-base", "W-12-base_2"}
            share = 0.3 if run.path.name in late or "-11-" in run.path.name else 0.5
            record(run.path.parent, run.path.name, 192, {"rope+plain": {24: 0.5, 176: share}})

    def branch_of(name, seed, base, folder):
        return [plan_run(f"{name}-{seed}-192", seed, {}, seed, folder)]

    def continued(name, seed, base, number, folder):
        return plan_run(f"W-{seed}-base_{number}", seed, {}, seed, folder)

    monkeypatch.setattr(command, "train_and_test", train)
    monkeypatch.setitem(STAGES, "W_1M", STAGES["W_1M"]._replace(n_seeds=2))
    monkeypatch.setattr(command, "plan_branches", branch_of)
    monkeypatch.setattr(command, "plan_continued", continued)
    for _ in range(2):  # the second time nothing is left to do
        command.run_stage("W_1M", 1)
        first = ["W-10-base", "W_1M-10-192"]
        second = ["W-11-base", "W-11-base_2", "W-11-base_3", "W-11-base_4"]
        third = ["W-12-base", "W-12-base_2", "W-12-base_3", "W_1M-12-192"]
        assert trained == [*first, *second, *third]
