"""Position frequency by mode against brute force, and its shares against arithmetic by hand."""

import json

import numpy as np
import pytest

from eval.engine.lengths import LengthHistogram, natural_lengths
from eval.frequency import main
from tests.data.stores import make_store


def brute_force(lengths, window, mode):
    """Lay the documents out as they are trained on and count every pair of positions."""
    if mode == "natural":
        segments = [min(window, n - k) for n in lengths for k in range(0, n, window)]
    else:
        segments = [window] if mode == "concatenated" else list(range(1, window + 1))
    f = np.zeros(window)
    for n in segments:
        for query in range(n):
            for key in range(query + 1):
                f[query - key] += 1
    return f / f[0]


@pytest.mark.parametrize("mode", ["natural", "concatenated", "uniform"])
@pytest.mark.parametrize("window", [5, 8, 13])
def test_frequency_counts_every_pair(mode, window):
    lengths = [1, 4, 5, 5, 9, 16, 30]
    distinct, counts = np.unique(lengths, return_counts=True)
    found = LengthHistogram("x", distinct, counts.astype(float)).frequency(window, mode)
    np.testing.assert_allclose(found, brute_force(lengths, window, mode), rtol=1e-12)


def test_the_built_in_shape_is_that_of_the_papers_figure():
    f = natural_lengths(2048).frequency(2048, "natural")
    assert f[:1025].sum() / f.sum() > 0.80  # arXiv:2410.18745, section 2
    assert f[1536:].sum() / f.sum() < 0.05


def test_shares_of_a_corpus_by_hand(tmp_path, capsys):
    # segments of 2, 8 and 3 tokens in windows of 8: f = 13, 10, 7, 5, 4, 3, 2, 1, the sum of which is 45
    make_store(tmp_path / "shards", [[[1, 1], [1] * 11]])
    words = [f"--corpus={tmp_path / 'shards'}", "--window=8", "--positions=3,5", "--tokens=130", "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["f"] for row in rows] == pytest.approx([50, 30])
    assert [row["share_to"] for row in rows] == pytest.approx([35 / 45, 42 / 45])
    assert [row["share_from"] for row in rows] == pytest.approx([15 / 45, 6 / 45])
    assert [row["segments_to"] for row in rows] == pytest.approx([2 / 3, 2 / 3])
