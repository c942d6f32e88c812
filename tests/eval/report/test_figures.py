"""eval.report: the data behind its figures."""

import json

import numpy as np
import pytest

from eval.report.figures import plot_frequency, plot_over_tokens
from eval.report.frames import list_outcomes, read_runs
from lab.core.chart import set_theme
from lab.core.chart_style import BELOW, BEYOND, RUN
from lab.counts.saved import F, G
from tests.eval.report.fakes import write_fake


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
    line, points = spec["datasets"].values()
    assert [row["reach"] for row in line] == [None, 50, None]
    assert [row["reach"] for row in points] == [20, 40, 90, 30, 60, 100]
    shape = spec["layer"][1]["layer"][0]["encoding"]["shape"]["scale"]
    marks = dict(zip(shape["domain"], shape["range"], strict=True))
    assert marks == {RUN: "circle", BEYOND: "triangle-up", BELOW: "triangle-down"}


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
