"""The picture of an upsampling: its bars are the record's numbers."""

import numpy as np
import pytest

from lab.data.mixture import Tally, record_of
from lab.data.mixture_picture import MOST_SOURCES, draw_lengths, draw_mixture, draw_sources, grouped, name, short

Figure = pytest.importorskip("matplotlib.figure").Figure


def record_for(n_sources):
    """A record of sources with 3 short documents of 5 tokens and one long document of 40, which is copied."""
    before, after = Tally.zero(2 * n_sources), Tally.zero(2 * n_sources)
    for source in range(n_sources):
        lengths, classes = np.array([5, 5, 5, 40 + source]), 2 * source + np.array([0, 0, 0, 1])
        before.add(lengths, classes, np.ones(4, dtype=np.int64))
        after.add(lengths, classes, np.array([1, 0, 0, 2]))
    names = [f"source{n}" for n in range(n_sources)]
    found = record_of(names, before, after, np.ones((n_sources, 2)), [None] * n_sources)
    return {"longer_than": 24, "share": 0.7, "tokens": None, "seed": 0, **found}


def test_bars_of_lengths_are_shares_of_tokens():
    axes = Figure().subplots()
    draw_lengths(axes, record_for(1))
    before, after = ([round(bar.get_height(), 9) for bar in bars] for bars in axes.containers)
    # lengths from 4, 8, 16, 32: 15 and 40 of 55 tokens, then 5 and 80 of 85
    assert before == pytest.approx([15 / 55, 0, 0, 40 / 55])
    assert after == pytest.approx([5 / 85, 0, 0, 80 / 85])
    (line,) = axes.get_lines()
    assert line.get_xdata()[0] == 2.5, "24 stands half-way between 16 and 32"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["4", "8", "16", "32", "64"]


def test_bars_of_sources_are_shares_with_their_long_part_filled():
    axes = Figure().subplots()
    draw_sources(axes, record_for(2))
    whole, long = (axes.containers[k] for k in (0, 1))
    # 55 and 56 tokens, of which 40 and 41 in long documents; the larger source stands first
    assert [bar.get_width() for bar in whole] == pytest.approx([56 / 111, 55 / 111])
    assert [bar.get_width() for bar in long] == pytest.approx([41 / 111, 40 / 111])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["source1", "source0"]
    assert [bar.get_width() for bar in axes.containers[2]] == pytest.approx([87 / 172, 85 / 172])


def test_many_sources_are_grouped_and_keep_their_sum():
    record = record_for(MOST_SOURCES + 5)
    rows = grouped(record["sources"])
    assert len(rows) == MOST_SOURCES
    assert rows[-1]["source"] == "6 others"
    for when in ("before", "after"):
        assert sum(row["share_of_tokens"][when] for row in rows) == pytest.approx(1)
        long = sum(row["share_of_tokens"][when] * row["long"][when] for row in rows)
        assert long == pytest.approx(record["all"]["long"][when])


def test_names_and_lengths_are_written_short(tmp_path):
    assert name("a" * 28) == "a" * 28
    assert (len(name("a" * 29)), name("a" * 29)[-1]) == (28, "…")
    assert [short(2**k) for k in (3, 10, 13, 20)] == ["8", "1K", "8K", "1M"]
    draw_mixture(record_for(3), tmp_path / "folder" / "mixture.png")
    assert (tmp_path / "folder" / "mixture.png").stat().st_size > 10_000
