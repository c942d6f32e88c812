"""eval.report: reach by two crossed settings."""

import pytest
import yaml

from eval.report.crossed import by_two_settings, crossed, crossed_points
from eval.report.data import read_runs
from eval.report.reach import BELOW, BEYOND, MEASURED
from tests.eval.report.fakes import write_fake


@pytest.fixture
def two_by_two(tmp_path):
    """Spreads .5 and .8 by sections of 96 and 192, two seeds each, of which one fails in one arm."""
    reaches = {(0.5, 96): (60, 70), (0.5, 192): (None, 50), (0.8, 96): (80, 80), (0.8, 192): (90, 100)}
    for (spread, section), found in reaches.items():
        for seed, reach in enumerate(found):
            path = write_fake(tmp_path / f"{spread}-{section}-{seed}", seed=seed, reaches=(40.0, reach))
            settings = yaml.safe_load((path / "config.yaml").read_text())
            settings["data"]["corpus"] = {"log_std": spread, "section_tokens": section, "quotes": section // 2}
            (path / "config.yaml").write_text(yaml.safe_dump(settings))
    return sorted(tmp_path.iterdir(), reverse=True)


def test_reach_of_crossed_settings_is_folded_over_seeds(two_by_two):
    runs = read_runs(two_by_two)
    points = crossed_points(runs, {"std": "data.corpus.log_std", "section": "data.corpus.section_tokens"})
    found = [(row.std, row.section, row.outcome, row.reach, row.runs) for row in points.itertuples()]
    assert found == [
        ("0.5", "96", MEASURED, 65, 2),
        ("0.5", "192", MEASURED, 50, 1),
        ("0.5", "192", BELOW, 20, 1),
        ("0.8", "96", MEASURED, 80, 2),
        ("0.8", "192", BEYOND, 95, 2),
    ]
    # mean 65, s 7.0711, n 2: half width 12.7062 * 7.0711 / sqrt(2) = 63.531
    assert list(points.loc[0, ["low", "high"]]) == pytest.approx([1.469, 128.531], abs=1e-3)


def test_figure_of_crossed_settings_names_them_and_what_follows(two_by_two):
    pytest.importorskip("altair")
    figure = by_two_settings(read_runs(two_by_two))
    spec = figure.chart.to_dict()
    assert spec["layer"][1]["encoding"]["x"]["title"] == "data.corpus.log_std"
    assert figure.caption.endswith("Settings that change with these two: data.corpus.section_tokens.")


@pytest.mark.parametrize(
    ("rows", "pair"),
    [
        ([(1, 1), (1, 2), (2, 1), (2, 2)], ("a", "b")),
        ([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)], ("b", "a")),  # more values go along the axis
        ([(1, 1), (1, 2), (2, 1)], None),
        ([(1, 1), (2, 2)], None),
        ([(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 2)], None),
        ([(1, 1, 7), (1, 2, 8), (2, 1, 7), (2, 2, 8)], ("a", "b")),  # b decides c
    ],
    ids=["2 by 2", "2 by 3", "one is missing", "one setting", "three settings", "one follows"],
)
def test_settings_are_crossed_where_every_value_meets_every_other(rows, pair):
    settings = {str(number): dict(zip("abc", row, strict=False)) for number, row in enumerate(rows)}
    assert crossed(settings) == pair
