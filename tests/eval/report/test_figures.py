"""eval.report: the data behind its figures."""

import json

import numpy as np
import pandas as pd
import pytest

from eval.report.figures import plot_frequency, plot_over_tokens
from eval.report.frames import fold_reaches, limits_over_seeds, list_outcomes, read_runs
from lab.core.chart import set_theme
from lab.core.chart_style import BELOW, BEYOND, MEAN, RUN
from lab.counts.saved import F, G
from tests.eval.report.fakes import evaluate, write_fake


@pytest.fixture
def seeds(tmp_path):
    """Two seeds of one arm: the methods pass, fail, or pass everything in one or both."""
    rows = [("plain", 50.0, 60.0), ("rerope(window=9)", None, 70.0), ("dca", None, None), ("self_extend", 90.0, 100.0)]
    paths = [write_fake(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    about = {"metric": "reach", "reach_low": None, "reach_high": None, "dips": [], "n": 100}
    about |= {"first_distance": 20, "last_distance": 100}
    for seed, path in enumerate(paths):
        evaluate(path, [{**about, "method": f"rope+{row[0]}", "reach": row[1 + seed]} for row in rows])
    return paths


def test_reach_is_a_mean_over_seeds_only_where_none_is_censored(seeds):
    """Plain is measured in both; the others fail at 20 tokens or pass at 100 in one seed or both."""
    rows = fold_reaches(read_runs(seeds).reaches, ["condition", "method"]).itertuples()
    points = {(row.method, row.outcome): (row.reach, row.low, row.high, row.runs, row.of) for row in rows}
    rerope, extend = "rerope(window=9)", "self_extend"
    one = {(rerope, BELOW): 20, (rerope, RUN): 70, ("dca", BELOW): 20, (extend, RUN): 90, (extend, BEYOND): 100}
    assert set(points) == {("plain", MEAN), *one}
    # limits of two seeds, 12.7062 * 7.0711 / sqrt(2) = 63.5 on both sides of their mean, would fill the figure
    assert points["plain", MEAN] == pytest.approx((55, np.nan, np.nan, 2, 2), nan_ok=True)
    # of three seeds with mean 2, s 1: half width 4.3027 / sqrt(3) = 2.4842
    assert limits_over_seeds([1, 2, 3]) == pytest.approx((2, -0.4842, 4.4842), abs=1e-3)
    for key, value in one.items():
        assert points[key] == pytest.approx((value, np.nan, np.nan, 1, 2), nan_ok=True), key
    alone = fold_reaches(read_runs(seeds[:1]).reaches, ["method"]).set_index("method")
    assert alone.loc["dca", ["reach", "low", "high", "outcome"]].tolist() == [20, 20, 100, BELOW]


def test_a_lone_run_has_the_limits_of_its_own_effective_length():
    ends = {"first": [64, 64], "last": [256, 256], "censored": [None, None]}
    rows = {
        "condition": ["a", "b"],
        "effective_length": [128.0, 192.0],
        "low": [96.0, 160.0],
        "high": [160.0, None],
        **ends,
    }
    points = fold_reaches(pd.DataFrame(rows), ["condition"], "effective_length")
    assert points[["low", "high"]].values.tolist() == [[96, 160], [160, 256]]


def test_a_loss_curve_is_a_mean_over_parts_of_the_run_beside_the_held_out_loss(tmp_path):
    run = write_fake(tmp_path / "a")
    rows = [{"step": k, "consumed_tokens": 10 * k, "loss": float(k)} for k in range(1, 161)]  # two a part
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    losses = read_runs([run]).losses
    trained = losses[losses["kind"] == "training"]
    assert trained[["consumed_tokens", "loss"]].values.tolist() == [[10 * k + 15, k + 1.5] for k in range(0, 160, 2)]


def test_growth_draws_censored_runs_at_their_bounds_and_means_of_measured_ones(tmp_path):
    """Of three probes of two seeds the first has a run below, the last one at the end: only the second has a mean."""
    pytest.importorskip("altair")
    reaches = ((None, 40.0, 90.0), (30.0, 60.0, 100.0))
    paths = [write_fake(tmp_path / f"a{k}", seed=k, reaches=reaches[k]) for k in (0, 1)]
    runs = read_runs(paths)
    assert runs.conditions == ["all, n = 2"]
    reaches = runs.results[runs.results["metric"] == "reach at 0.8"]
    found = list_outcomes(reaches, "score")[["probe", "score", "outcome"]].values.tolist()
    assert found == [[0, 20, BELOW], [1, 40, RUN], [2, 90, RUN], [0, 30, RUN], [1, 60, RUN], [2, 100, BEYOND]]
    spec = plot_over_tokens(runs, value="reach", title="Reach").chart.to_dict()
    line, points = ([row for row in rows if "reach" in row] for rows in spec["datasets"].values())
    assert [row["reach"] for row in line] == [None, 50, None]
    assert [row["reach"] for row in points if row["outcome"] == MEAN] == [50]
    shape = spec["layer"][1]["layer"][0]["encoding"]["shape"]["scale"]
    marks = dict(zip(shape["domain"], shape["range"], strict=True))
    assert marks == {MEAN: "diamond", RUN: "circle", BEYOND: "triangle-up", BELOW: "triangle-down"}


def test_f_and_g_are_drawn_side_by_side_and_g_is_missing_in_older_records(tmp_path):
    pytest.importorskip("altair")
    paths = [write_fake(tmp_path / f"a{seed}", seed=seed, window=4) for seed in (0, 1)]
    f = (np.array([40, 30, 20, 10]), np.array([40, 30, 20, 30]))
    for path, own in zip(paths, f, strict=True):
        np.savez(path / "counts.npz", lengths=np.zeros(5, np.int64), f=own, tokens=40)
    (rows,) = plot_frequency(read_runs(paths)).chart.to_dict()["datasets"].values()
    assert {row["profile"] for row in rows} == {F}
    np.savez(paths[0] / "counts.npz", lengths=np.zeros(5, np.int64), f=f[0], tokens=40, g=np.array([0, 0, 7, 1]))
    spec = json.loads(json.dumps(set_theme(plot_frequency(read_runs(paths)).chart).to_dict(), allow_nan=False))
    (rows,) = spec["datasets"].values()
    found = {(row["profile"][0], row["distance"]): row["per distance"] for row in rows}
    expected = {("f", 1): 30, ("f", 2): 20, ("f", 3): 20, ("g", 1): None, ("g", 2): 7, ("g", 3): 1}
    assert found == expected, "g(1) = 0 has no logarithm: a gap"
    assert spec["facet"]["sort"] == [F, G]
