import itertools
import json
import re
from xml.etree import ElementTree

import pytest

from lab.core.chart import Axis, Rule, plot_heat, plot_lines, save_chart
from lab.core.errors import ConfigError

pytest.importorskip("altair")
LIMITS = {"low": 0.2, "high": 0.9}
ROWS = [{"length": n, "method": name, "score": 1 - n / 512, **LIMITS} for name in ("rope", "string") for n in (64, 128)]


def marks(chart):
    return [part["mark"]["type"] for part in chart.to_dict()["layer"]]


@pytest.mark.parametrize(("points", "types"), [(False, ["line", "area"]), (True, ["point", "rule"])])
def test_a_chart_has_its_marks_and_their_limits(points, types):
    chart = plot_lines(ROWS, "length", "score", "method", limits=True, points=points)
    assert marks(chart) == types
    (rows,) = chart.to_dict()["datasets"].values()
    assert rows == ROWS


def test_a_heat_map_keeps_the_order_of_its_rows_and_leaves_gaps():
    scores = {"9-10": None, "0-9": 0.5}
    rows = [{"length": n, "depth": depth, "score": score} for n in (64, 128) for depth, score in scores.items()]
    spec = plot_heat(rows, "length", "depth", "score", percent=True).to_dict()
    assert "NaN" not in json.dumps(spec)
    encoding = spec["layer"][0]["encoding"]
    assert encoding["y"]["sort"] == ["9-10", "0-9"]
    assert encoding["color"]["scale"]["domain"] == [0, 1]


@pytest.mark.parametrize(("size", "types"), [(24, ["rect", "text"]), (72, ["rect"])])
def test_numbers_of_a_heat_map_never_overlap(size, types):
    rows = [{"key": k, "query": q, "score": 0.5} for k in range(size) for q in range(size)]
    assert marks(plot_heat(rows, "key", "query", "score")) == types


def test_another_suffix_or_place_is_refused_in_one_line(tmp_path):
    chart = plot_lines(ROWS, "length", "score")
    with pytest.raises(ConfigError, match=r"\.png or \.svg; "):
        save_chart(chart, tmp_path / "chart.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/chart.png: cannot be written"):
        save_chart(chart, tmp_path / "file" / "chart.png")


def test_the_text_of_a_threshold_ends_left_of_a_line_at_the_end_of_x():
    rules = [Rule("y", 0.8, "threshold"), Rule("x", 9)]
    chart = plot_lines([{"x": 1, "y": 0.5}, {"x": 9, "y": 1.0}], "x", "y", rules=rules)
    (text,) = [part for part in chart.to_dict()["layer"] if part["mark"]["type"] == "text"]
    scale = next(part for part in chart.to_dict()["layer"] if part["mark"]["type"] == "line")["encoding"]["x"]["scale"]
    assert text["mark"]["align"] == "right"
    assert text["mark"]["dx"] < -scale["padding"], "the line stands so many pixels before the end of the axis"


@pytest.mark.parametrize("kind", ["numbers", "logarithmic", "names", "heat"])
def test_tick_labels_do_not_overlap(tmp_path, kind):
    """Measured in the picture: of 12 pixels, digits of a sans-serif letter are 6.7 wide, and commas 3.4."""
    lengths = [*range(100_000, 160_000, 1500)]
    rows = [{"x": n, "score": 0.5, "y": "a", "log": 100_001 * 2 ** (k / 2)} for k, n in enumerate(lengths)]
    if kind == "heat":
        chart = plot_heat(rows, "x", "y", "score", width=480)
    elif kind == "names":
        chart = plot_lines([{**row, "x": f"{row['x']:,}"} for row in rows], "x", "score", points=True)
    else:
        chart = plot_lines(rows, Axis("log", log=True) if kind == "logarithmic" else "x", "score", width=280)
    save_chart(chart, tmp_path / "x.svg")
    ends = []
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        if "role-axis-label" in group.get("class", ""):
            for text in group.iter("{http://www.w3.org/2000/svg}text"):
                if text.get("opacity") != "0" and text.get("text-anchor") == "middle":
                    middle = float(re.match(r"translate\(([-\d.]+)", text.get("transform"))[1])
                    half = (6.7 * len(text.text) - 3.3 * text.text.count(",")) / 2
                    ends.append((middle - half, middle + half))
    ends.sort()
    assert len(ends) >= 2
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ends)), ends
