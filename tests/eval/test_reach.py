"""The regression of reach: against values by hand, peers of scipy, and simulated runs whose coefficients are known."""

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from eval.engine.regression import fit, inflation, is_measured, jackknife, select_separable
from eval.reach import DEMAND, main, read_points, tabulate_reach
from lab.analysis.conditions import find_conditions
from lab.analysis.table import bound_reach, read_result_table
from lab.core.yaml import format_yaml
from lab.counts import PositionCounts
from lab.runs.folder import RunFolder

TRUE = {"f": 0.5, "tokens": 0.2, "window": 0.7}
COLUMNS = list(TRUE)
MIDDLE = {"f": np.log(6e4), "tokens": np.log(2.5e6), "window": np.log(192)}
NOISE, OF_RUN = 0.10, 0.08  # nats, of a probe and of a whole run


def simulated(seed, truth=TRUE, seeds=4, ends=1.0, first=0.2):
    """Draw probes of runs of three windows and two corpora; reach beyond `ends` times the window is the end.

    Reach at or below `first` windows counts as none.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for arm, (window, corpus) in enumerate(itertools.product((128, 192, 256), (1, 8))):
        for number in range(seeds):
            shift = generator.normal(0, OF_RUN)
            about = {"run": f"{arm}-{number}", "base": f"{arm}-{number}", "arm": str(arm)}
            for tokens in (1e6, 2e6, 3e6, 4e6, 5e6):
                f = tokens / 100 * corpus * (1 - 40 / window)
                columns = {"f": f, "tokens": tokens, "window": window, "theta": 1000.0, "section": 192.0}
                y = 4.6 + sum(slope * (np.log(columns[c]) - MIDDLE[c]) for c, slope in truth.items())
                reach = np.exp(y + shift + generator.normal(0, NOISE))
                rows.append({**about, **columns, **bounded(reach, first * window, ends * window)})
    return pd.DataFrame(rows)


def bounded(reach, first, last):
    reach = min(reach, last) if reach is not None and reach > first else None
    return dict(zip(("low", "high"), bound_reach(reach, first, last)))


def test_the_fit_is_the_maximum_of_the_likelihood_written_out():
    points = simulated(1, ends=0.6)
    exact, end = is_measured(points), np.isposinf(points["high"])
    assert min(exact.sum(), end.sum(), (~exact & ~end).sum()) > 5
    x = np.log(points[COLUMNS]) - pd.Series(MIDDLE)

    def loss(parameters):
        mean, sigma = parameters[0] + x.to_numpy() @ parameters[1:4], np.exp(parameters[4])
        each = np.where(end, norm.logsf(points["low"], mean, sigma), norm.logcdf(points["high"], mean, sigma))
        return -np.where(exact, norm.logpdf(np.where(exact, points["low"], 0), mean, sigma), each).sum()

    best = minimize(loss, [4.6, 0, 0, 0, 0], method="Powell", options={"xtol": 1e-8, "ftol": 1e-12, "maxiter": 20_000})
    model = fit(points, COLUMNS)
    assert model.slopes == pytest.approx(best.x[1:4], abs=5e-3)


def test_known_coefficients_are_within_the_limits_and_dropping_the_bounds_is_not():
    points = simulated(2, ends=0.75)
    bounded = ~is_measured(points)
    assert 0.2 < bounded.mean() < 0.6
    model = fit(points, COLUMNS)
    limits, n_bases = jackknife(points, model)
    assert n_bases == 24
    for column, slope in TRUE.items():
        assert limits.low[column] < slope < limits.high[column]
        assert limits.high[column] - limits.low[column] < 0.6
    dropped = points[~bounded].reset_index(drop=True)
    biased, _ = jackknife(dropped, fit(dropped, COLUMNS))
    assert biased.high["f"] < TRUE["f"], "reach that is cut off grows less with f"


def test_columns_that_cannot_be_told_apart_are_named():
    points = simulated(0)
    assert select_separable(points, [*COLUMNS, "theta"]) == (tuple(COLUMNS), {"theta": "the same in all points"})
    one_arm = points[points["arm"] == "0"]
    kept, faults = select_separable(one_arm, COLUMNS)
    assert kept == ("f",)
    assert faults == {"tokens": "collinear with f (R2 1.0000)", "window": "the same in all points"}
    # two windows of one corpus: f is tokens times a constant of each window, so that the third follows from two
    two = points[points["arm"].isin(["0", "2"])]
    assert max(inflation(two, COLUMNS).values()) == pytest.approx(1)
    noise = np.random.default_rng(0).normal(0, 0.005, len(two))  # of counts; only f is then nearly all explained
    two = two.assign(f=two["f"] * np.exp(noise))
    shares = inflation(two, COLUMNS)
    assert shares["window"] < 0.999 < shares["f"]
    assert select_separable(two, COLUMNS)[0] == ("f", "tokens")
    assert select_separable(points.assign(section=np.nan), ["section"]) == ((), {"section": "unknown in some points"})
    near = points.assign(tokens=np.where(points["window"] == 128, 1e6, 1.001e6))
    assert select_separable(near, ["tokens"])[1] == {"tokens": "the same in all points"}, "runs end some tokens apart"


def test_a_coefficient_that_bounds_leave_open_is_infinite():
    # reach was measured at x = 1 only, and is beyond 20 at x = e
    y = np.log([9.0, 10, 11, 12, 20, 20])
    points = pd.DataFrame({"low": y, "high": [*y[:4], np.inf, np.inf], "x": np.exp([0, 0, 0, 0, 1.0, 1])})
    model = fit(points, ["x"])
    assert model.reported == {"x": np.inf}
    assert np.isfinite(model.slopes).all()
    assert fit(points[:4], ["x"][:0]) is not None
    assert fit(points[:2], []) is None, "two reaches do not give a mean and a deviation"


def test_reach_is_laid_out_by_arm():
    rows = [
        ("a", "x", 100, 4000),
        ("a", "x", 100, 400),
        ("b", "x", 400, 1600),
        ("c", "y", None, None),
        ("d", "y", 500, 9),
    ]
    names = ("run", "condition", "reach", "f_at_reach")
    points = pd.DataFrame([dict(zip(names, row)) | bounded(row[2], 50, 500) for row in rows])
    table = tabulate_reach(points.astype({"reach": float, "f_at_reach": float}))
    assert table.loc["x"].tolist() == pytest.approx([2, 0, 2, 0, 200, 800])  # of the last probes
    assert table.loc["y", ["none", "measured", "the end"]].tolist() == [1, 0, 1]
    assert table.loc["y", ["reach", "f at reach"]].isna().all()


def forks(bases=5, held=True):
    """Draw branches of bases that differ in demand; f differs between bases alone, or within them too."""
    generator = np.random.default_rng(0)
    rows = []
    for base in range(bases):
        for branch, demand in enumerate((0, 0, 30, 300, 3_000, 30_000)):
            f = 1e5 * (1 + base) * (1 if held else 2.0**branch)
            y = 4 + 0.05 * np.log(demand + 1) + generator.normal(0, 0.02)
            columns = {"f": f, DEMAND: demand + 1, "tokens": 1e6, "window": 192.0, "theta": 1e3, "section": 192.0}
            names = {"arm": str(branch), "run": f"{base}-{branch}", "base": str(base)}
            rows.append({**columns, **names, "low": y, "high": y})
    return pd.DataFrame(rows)


def test_what_was_held_in_the_runs_of_each_base_is_reported_as_held():
    points = forks()
    columns, faults = select_separable(points, ("f", DEMAND))
    assert (columns, faults) == ((DEMAND,), {"f": "held: the same in all runs of each base"})
    assert select_separable(points.assign(base=points["run"]), ("f", DEMAND))[0] == ("f", DEMAND), "runs without bases"
    assert select_separable(forks(held=False), ("f", DEMAND))[1] == {}


def test_forks_of_several_seeds_are_one_arm_and_of_other_bases_another():
    settings = {}
    for base, seed in itertools.product((128, 192), (0, 1)):
        about = {"run.seed": seed, "data.corpus.seed": seed, "data.window": base, "start.path": None}
        settings[f"runs/{base}-{seed}"] = about
        settings[f"runs/fork{base}-{seed}"] = {**about, "start.path": f"elsewhere/{base}-{seed}", "data.window": 96}
    conditions = {name: condition.name for name, condition in find_conditions(settings).items()}
    names = ("128", "fork128", "192", "fork192")
    assert [conditions[f"runs/{name}-0"] for name in names] == [conditions[f"runs/{name}-1"] for name in names]
    assert len({*conditions.values()}) == 4
    assert conditions["runs/fork128-0"] == "from base window of 128"
    pooled = find_conditions(settings, ["start.path"])
    assert {pooled[name].name for name in settings if "fork" in name} == {"all"}
    assert {pooled[name].is_base for name in settings if "fork" not in name} == {True}


def write_distances(path, start, shares, window=192, theta=1000.0):
    """Write a run without probes, and what `distance` has found of it: shares by distance, and none at 24."""
    counts = PositionCounts(192)
    counts.add_segments([192] * 10)
    for name in ("counts", "eval"):
        (path / name).mkdir(parents=True)
    settings = {"run": {"seed": 0}, "data": {"window": window}, "start": {"path": start}, "model": {"theta": theta}}
    (path / "config.yaml").write_text(format_yaml(settings))
    RunFolder(path).write_counts(counts, 1920)
    about = {"metric": "found_by_distance", "method": "rope+plain", "consumed_tokens": 1920, "n": 20}
    rows = [{**about, "distance": d, "found": 20 * x, "score": x} for d, x in shares.items()]
    rows += [{**about, "distance": 24, "found": 0, "score": 0}, {**rows[0], "method": "rope+dca(96)", "found": 20}]
    RunFolder(path / "eval").write_records("distance-1.jsonl", rows)


def test_runs_without_probes_are_read_by_what_eval_distance_found(tmp_path):
    """Bases are omitted; .5 at 48, 1 at 60 and .6 at 100 give 60 + 40 / 2; .4 at most has not acquired retrieval."""
    write_distances(tmp_path / "base", None, {48: 1, 60: 1, 100: 1})
    write_distances(tmp_path / "fork", "runs/base", {36: 1, 48: 0.5, 60: 1, 100: 0.6})
    write_distances(tmp_path / "low", "runs/base", {48: 0.1, 60: 0.4, 100: 0})
    points = read_points(read_result_table(sorted(tmp_path.iterdir())), 64)
    assert points["run"].tolist() == ["fork", "low"]
    assert points["acquired"].tolist() == [True, False]
    assert points["reach"][0] == 80
    assert (points["low"][1], points["high"][1]) == (-np.inf, np.log(24)), "the upper limit is below at every distance"
    assert points["f"].tolist() == [10 * (192 - 64)] * 2


def test_arms_are_named_by_what_differs_between_runs_that_are_used(tmp_path, capsys):
    """A base of its own for each seed, and runs that have not begun, in another window, leave no trace in names."""
    runs = [("base", None, 1e3), ("other", None, 500.0), ("fork", "runs/base", 1e3), ("long", "runs/base", 2e3)]
    for name, start, theta in runs:
        write_distances(tmp_path / name, start, {48: 1, 100: 0.5}, theta=theta)
    write_distances(tmp_path / "low", "runs/other", {48: 0.1, 100: 0.05}, window=160, theta=500.0)
    assert main([str(path) for path in sorted(tmp_path.iterdir())]) == 0
    out = capsys.readouterr().out
    assert "conditions differ in: model.theta\n" in out
    assert "window of" not in out


def write_runs(folder):
    """Write run folders as training leaves them: reach is the square root of f at 64 tokens, with some noise."""
    generator = np.random.default_rng(0)
    for window, documents in ((160, 80), (160, 160), (240, 100), (240, 240)):
        for seed in (0, 1):
            run = RunFolder(folder / f"{window}-{documents}-{seed}")
            (run.path / "counts").mkdir(parents=True)
            settings = {"run": {"seed": seed}, "data": {"window": window, "corpus": {"median_tokens": documents}}}
            (run.path / "config.yaml").write_text(format_yaml({**settings, "model": {"theta": 1000.0}}))
            counts, records = PositionCounts(window), []
            for tokens in (120_000, 360_000, 960_000):
                counts.add_segments([documents] * ((tokens - counts.tokens) // documents))
                run.write_counts(counts, tokens)
                reach = round(float(np.sqrt(counts.frequency()[64]) / 6 * np.exp(generator.normal(0, 0.05))), 1)
                found = {"reach": reach, "reach_low": reach - 5, "reach_high": reach + 5, "f_at_reach": 5000}
                found |= {"reach": None, "reach_low": None, "f_at_reach": None} if reach < 30 else {}
                found |= {"first_distance": 30, "last_distance": window - 20, "effective_length": None}
                found |= {"threshold": 0.8, "model": run.path.name, "method": "rope+plain"}
                records.append({"consumed_tokens": tokens, **found})
            run.write_records("probes.jsonl", records)
    return sorted(str(path) for path in folder.iterdir())


def test_the_command_reads_runs_and_writes_its_tables_and_picture(tmp_path, capsys, monkeypatch):
    runs = write_runs(tmp_path / "runs")
    assert main([*runs, "--at=64", "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("n = 22 probes of 8 runs in 4 conditions; reach measured in 22, ")
    left_out = "skipped 2 without retrieval, 0 without f at 64 tokens or a limit of reach\n"
    assert f"{left_out}conditions differ in: data.corpus.median_tokens" in text
    assert "not in the regression, unknown in some points: section" in text
    assert re.search("not in the regression, the same in all points: .*theta", text)
    rows = pd.read_json(tmp_path / "out" / "reach.jsonl", lines=True)
    found = rows[rows["table"] == "coefficients"].set_index("column")
    assert list(found.index) == ["f", "tokens", "window"]
    assert found.loc["f", "low"] < 0.5 < found.loc["f", "high"]
    assert found.loc["tokens", "low"] < 0 < found.loc["tokens", "high"]
    points = rows[rows["table"] == "points"]
    saved = np.load(f"{runs[0]}/counts/tokens-{120_000:015d}.npz")["f"]
    assert (points["f"].iloc[0], len(points)) == (saved[64], 22)
    monkeypatch.setattr("eval.reach.fit", lambda *_: None)  # what follows asks which points are taken
    assert main([*runs, "--last", "--at=64"]) == 0
    assert "n = 8 probes of 8 runs" in capsys.readouterr().out


def test_demand_is_summed_from_the_distance_on_and_unknown_in_older_records(tmp_path, capsys):
    paths = [Path(path) for path in write_runs(tmp_path / "runs")]
    for number, path in enumerate(paths):
        for file in path.glob("counts/*.npz"):
            with np.load(file) as saved:
                arrays = {**saved, "g": np.bincount([3, 63, 64, 90], [9, 9, number, 5], minlength=len(saved["f"]))}
            np.savez(file, **arrays)
    points = read_points(read_result_table(paths), 64, last_only=True)
    assert points["demand+1"].tolist() == [number + 6 for number in range(len(paths))]
    assert main([*map(str, paths), "--at=64", "--last"]) == 0
    assert "regression: demand+1, " not in capsys.readouterr().out
    np.savez(file, **{name: array for name, array in arrays.items() if name not in ("g", "g_unweighted")})
    assert main([*map(str, paths), "--at=64"]) == 0
    out = capsys.readouterr().out
    assert "not in the regression, unknown in some points: demand+1" in out
