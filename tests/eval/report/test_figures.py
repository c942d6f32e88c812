"""eval.report: the data behind its figures."""

import json

import numpy as np
import pandas as pd
import pytest

from eval.report.data import BELOW, BEYOND, MEASURED, reach_points, read_runs
from eval.report.figures import DEFAULT_WINDOW, DRAWN, by_shift_and_window, frequency, reach_by_method, string_cells
from lab.counts.demand import F, G
from lab.draw import themed
from lab.positions.string import String
from lab.train.folder import RunFolder
from tests.eval.report.fakes import evaluate, one, write_fake


def reach(method, value, low=None, high=None):
    limits = {"reach": value, "reach_low": low, "reach_high": high, "first_distance": 20, "last_distance": 100}
    return {"metric": "reach", "method": f"rope+{method}", "n": 100, **limits}


@pytest.fixture
def seeds(tmp_path):
    """Two seeds of one arm: the methods pass, fail, or pass everything in one or both."""
    rows = [("plain", 50.0, 60.0), ("rerope(window=9)", None, 70.0), ("dca", None, None), ("self_extend", 90.0, 100.0)]
    paths = [write_fake(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    for seed, path in enumerate(paths):
        evaluate(path, [reach(row[0], row[1 + seed]) for row in rows])
    return paths


def by_outcome(runs):
    points = reach_points(runs.reaches, ["arm", "method"])
    return {(row.method, row.outcome): (row.reach, row.low, row.high, row.runs) for row in points.itertuples()}


def test_reach_is_folded_over_seeds_and_failures_are_counted_at_the_first_distance(seeds):
    points = by_outcome(read_runs(seeds))
    rerope = {("rerope(window=9)", MEASURED), ("rerope(window=9)", BELOW)}
    assert set(points) == {("plain", MEASURED), ("dca", BELOW), ("self_extend", BEYOND)} | rerope
    # mean 55, s 7.0711, n 2: half width 12.7062 * 7.0711 / sqrt(2) = 63.531; the lower limit would be below 0
    assert points["plain", MEASURED] == pytest.approx((55, 0, 118.531, 2), abs=1e-3)
    assert points["self_extend", BEYOND] == pytest.approx((95, 31.469, 158.531, 2), abs=1e-3)
    assert points["rerope(window=9)", MEASURED] == pytest.approx((70, 20, 100, 1))  # its tests set no limits
    assert points["rerope(window=9)", BELOW] == pytest.approx((20, 20, 100, 1))
    assert points["dca", BELOW] == pytest.approx((20, np.nan, np.nan, 2), nan_ok=True)


def test_methods_are_drawn_in_the_order_of_their_parameters(tmp_path):
    pytest.importorskip("altair")
    path, names = write_fake(tmp_path / "a"), [f"string(shift={shift},window=8)" for shift in (128, 16, 64)]
    evaluate(path, [reach(name, 50.0) for name in names])
    spec = reach_by_method(read_runs([path])).chart.to_dict()
    order = spec["layer"][0]["encoding"]["y"]["sort"]
    assert order == ["plain", *(f"string(shift={shift},window=8)" for shift in (16, 64, 128))]


def test_cells_of_shift_and_window_are_means_and_show_what_was_not_measured(tmp_path):
    paths = [write_fake(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    grid = {(32, 8): (40.0, 50.4), (32, 16): (None, 60.0), (64, 8): (None, None), (64, 16): (90.0, 100.0)}
    for seed, path in enumerate(paths):
        names = {f"string(shift={shift},window={window})": each[seed] for (shift, window), each in grid.items()}
        evaluate(path, [reach(name, value) for name, value in names.items()])
    runs = read_runs(paths)
    cells = string_cells(runs.reaches).set_index(["shift", "window"])
    assert cells["text"].to_dict() == {(32, 8): "45", (32, 16): "60*", (64, 8): "<20", (64, 16): "95+"}
    assert cells["failed"].to_dict() == {(32, 8): 0, (32, 16): 1, (64, 8): 2, (64, 16): 0}
    assert by_shift_and_window(runs) is not None


def test_a_name_without_window_has_the_default():
    assert String(shift=256).window == DEFAULT_WINDOW
    names = ["string(shift=256)", "string(shift=512)", "string(shift=256,window=64)"]
    rows = pd.DataFrame([{"arm": "all", "run": "a", **reach("", 50.0), "method": name} for name in names])
    cells = string_cells(rows)
    assert list(zip(cells["shift"], cells["window"], strict=True)) == [(256, 128), (512, 128), (256, 64)]


def test_reach_without_the_distances_tested_and_shares_without_f_are_drawn_in_valid_json(tmp_path):
    pytest.importorskip("altair")
    path = write_fake(tmp_path / "a")
    RunFolder(path).write_records("probes.jsonl", [])  # no training was recorded
    names = ["plain", *(f"string(shift={shift},window={window})" for shift in (32, 64) for window in (8, 16))]
    evaluate(path, [reach(name, 60.0) | {"last_distance": None} for name in names])
    runs = read_runs([path])
    uncounted = [one(20, 0.5) | {"method": "plain", "f": None}]  # farther than any training window
    evaluate(path, uncounted, tokens=3_000_000)
    far = DRAWN[4](read_runs([path]))
    for figure in (reach_by_method(runs), by_shift_and_window(runs), far):
        json.dumps(themed(figure.chart).to_dict(), allow_nan=False)


def test_f_and_g_are_drawn_side_by_side_and_g_is_missing_in_older_records(tmp_path):
    pytest.importorskip("altair")
    paths = [write_fake(tmp_path / f"a{seed}", seed=seed, window=4) for seed in (0, 1)]
    f = (np.array([40, 30, 20, 10]), np.array([40, 30, 20, 30]))
    for path, own in zip(paths, f, strict=True):
        np.savez(path / "counts.npz", lengths=np.zeros(5, np.int64), f=own, tokens=40)
    older = frequency(read_runs(paths))
    assert "facet" not in older.chart.to_dict()
    np.savez(paths[0] / "counts.npz", lengths=np.zeros(5, np.int64), f=f[0], tokens=40, g=np.array([0, 0, 7, 1]))
    figure = frequency(read_runs(paths))
    spec = json.loads(json.dumps(themed(figure.chart).to_dict(), allow_nan=False))
    (rows,) = spec["datasets"].values()
    found = {(row["profile"][0], row["distance"]): row["per distance"] for row in rows}
    assert found == {("f", 1): 30, ("f", 2): 20, ("f", 3): 20, ("g", 2): 7, ("g", 3): 1}  # g(1) = 0 has no logarithm
    assert spec["facet"]["sort"] == [F, G]
