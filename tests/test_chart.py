import json

import pytest

from lab.core.chart import Rule, plot_rows, save
from lab.core.errors import ConfigError

pytest.importorskip("altair")
LIMITS = {"low": 0.2, "high": 0.9}
ROWS = [{"length": n, "method": name, "score": 1 - n / 512, **LIMITS} for name in ("rope", "string") for n in (64, 128)]


def marks(chart):
    return [part["mark"]["type"] for part in chart.to_dict()["layer"]]


@pytest.mark.parametrize(("kind", "types"), [("line", ["line", "area"]), ("point", ["point", "rule"])])
def test_a_chart_has_its_marks_and_their_limits(kind, types):
    chart = plot_rows(ROWS, "length", "score", "method", low="low", high="high", kind=kind)
    assert marks(chart) == types
    (rows,) = chart.to_dict()["datasets"].values()
    assert rows == ROWS


def test_a_heat_map_keeps_the_order_of_its_rows_and_leaves_gaps():
    scores = {"9-10": None, "0-9": 0.5}
    rows = [{"length": n, "depth": depth, "score": score} for n in (64, 128) for depth, score in scores.items()]
    spec = plot_rows(rows, "length", "depth", "score", kind="heat", percent=True).to_dict()
    assert "NaN" not in json.dumps(spec)
    encoding = spec["layer"][0]["encoding"]
    assert encoding["y"]["sort"] == ["9-10", "0-9"]
    assert encoding["color"]["scale"]["domain"] == [0, 1]


@pytest.mark.parametrize(("size", "types"), [(24, ["rect", "text"]), (72, ["rect"])])
def test_numbers_of_a_heat_map_never_overlap(size, types):
    rows = [{"key": k, "query": q, "score": 0.5} for k in range(size) for q in range(size)]
    assert marks(plot_rows(rows, "key", "query", kind="heat")) == types


def test_another_suffix_or_place_is_refused_in_one_line(tmp_path):
    chart = plot_rows(ROWS, "length", "score")
    with pytest.raises(ConfigError, match=r"\.png or \.svg; "):
        save(chart, tmp_path / "chart.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/chart.png: cannot be written"):
        save(chart, tmp_path / "file" / "chart.png")


def test_the_text_of_a_threshold_ends_left_of_a_line_at_the_end_of_x():
    rules = [Rule("y", 0.8, "threshold"), Rule("x", 9)]
    chart = plot_rows([{"x": 1, "y": 0.5}, {"x": 9, "y": 1.0}], "x", "y", rules=rules)
    (text,) = [part for part in chart.to_dict()["layer"] if part["mark"]["type"] == "text"]
    scale = next(part for part in chart.to_dict()["layer"] if part["mark"]["type"] == "line")["encoding"]["x"]["scale"]
    assert text["mark"]["align"] == "right"
    assert text["mark"]["dx"] < -scale["padding"], "the line stands so many pixels before the end of the axis"
