"""The planner: position frequency by mode against brute force, the law against arithmetic by hand."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from eval.engine.law import Point, fit_law
from eval.engine.lengths import LengthHistogram, natural_lengths
from eval.plan import main
from lab.config import load_experiment
from lab.counts import PositionCounts
from lab.positions.rope import base_warning, longest_context, smallest_base
from lab.train.folder import RunFolder


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


def test_the_law_is_a_mean_with_the_limits_of_one_new_point():
    # ln f = 2, 3, 5, 6: mean 4, s^2 = 10/3; t(.975, 3) = 3.182446
    points = [Point(str(y), 10 * y, math.exp(y)) for y in (2, 3, 5, 6)]
    law = fit_law([*points, Point("open", 90, 1e9, open=True)])
    assert law == pytest.approx((4, 3.182446 * math.sqrt(10 / 3 * 1.25)), rel=1e-6)


def test_reach_and_tokens_are_where_the_frequency_meets_the_law():
    per_token = np.array([1.0, 0.8, 0.5, 0.3, 0.1])
    law = fit_law([Point("a", 10, 90.0)])
    assert list(law.expect(per_token, 200).values()) == [2, None, None, False]  # 160, 100, 60, 20
    law = fit_law([Point("a", 10, 90.0), Point("b", 20, 90.0)])
    assert law.expect(per_token, 100)["reach"] is None
    assert list(law.expect(per_token, 1000).values()) == [4, 4, 4, True]
    assert law.tokens_for(per_token, 3)[0] == pytest.approx(300)
    assert law.tokens_for(per_token, 5) is None


def test_the_bound_of_the_rotary_base():
    # 0.0424 * 4096^1.628 = 0.0424 * e^(1.628 * 8.317766) = 0.0424 * e^13.541323 = 32,233
    assert smallest_base(4096) == pytest.approx(0.0424 * math.exp(1.628 * math.log(4096)))
    assert abs(longest_context(smallest_base(4096)) - 4096) <= 1
    assert base_warning(10_000, 2048) is None
    assert base_warning(10_000, 4096).startswith("model.theta=10000: serves 1,995 tokens")


def test_a_wrong_corpus_is_one_line(capsys):
    assert main(["--corpus=none"]) == 2
    error = capsys.readouterr().err
    assert error == "--corpus=none: must be slimpajama or a folder of token shards; correct it\n"


def finished_run(folder, window, tokens, **summary):
    """Write what the planner reads of a run, trained on full windows."""
    config = Path(__file__).parents[2] / "configs" / "cpu_test.yaml"
    experiment = load_experiment(config, {"data.window": window, "run.name": folder.name})
    folder.mkdir()
    (folder / "config.yaml").write_text(experiment.to_yaml())
    counts = PositionCounts(window)
    counts.add_segments([window] * (tokens // window))
    run = RunFolder(folder)
    run.write_counts(counts)
    run.write_records("probes.jsonl", [{"consumed_tokens": tokens, "effective_length": None, **summary}])


def test_runs_are_points_and_a_window_is_predicted_from_the_others(tmp_path, capsys):
    for window, reach, tokens in ((32, 16, 64_000), (64, 32, 64_000), (128, 96, 128_000)):
        f = (window - reach) * (tokens // window)  # 32,000 in each
        finished_run(tmp_path / f"w{window}", window, tokens, reach=reach, reach_high=reach + 4.0, f_at_reach=f)
    finished_run(tmp_path / "open", 128, 64_000, reach=120, reach_high=None, f_at_reach=4000)
    runs = [str(tmp_path / name) for name in ("w32", "w64", "w128", "open")]
    status = main([*runs, "--mode=concatenated", "--window=64", "--tokens=64000", "--target=48"])
    text = capsys.readouterr().out
    assert status == 0
    assert "n = 3: F = 3.2e+04" in text
    assert "left out: open: reach 120 may lie beyond the longest that was tested" in text
    errors = [line.split()[-1] for line in text.splitlines() if line.strip().startswith("window 1") or "+0%" in line]
    assert errors.count("+0%") == 3
    # a window of 64 after 64,000 tokens: f(32) = 32,000, the law; f(48) = 16,000, so that 48 takes twice the tokens
    assert text.splitlines()[-1].split()[:3] == ["64", "concatenated", "32"]
    assert "1.28e+05" in text


def test_a_window_that_is_held_out_is_predicted_with_limits_and_error(tmp_path, capsys):
    # f(i) = T (L - i) / L of full windows. The law of 64 and 128 is F = sqrt(20,000 * 45,000) = 30,000, so that a
    # window of 32 after 64,000 tokens, f(i) = 2,000 (32 - i), reaches 17: 16 was measured, +6%
    for window, reach, tokens, f in ((32, 16, 64_000, 32_000), (64, 44, 64_000, 20_000), (128, 83, 128_000, 45_000)):
        assert (window - reach) * (tokens // window) == f
        finished_run(tmp_path / f"w{window}", window, tokens, reach=reach, reach_high=reach + 4.0, f_at_reach=f)
    # an open reach is predicted, not fitted: the law of the others has F = (32, 20, 45) = 30,652, f(51) = 13,000
    finished_run(tmp_path / "open", 256, 64_000, reach=204, reach_high=None, f_at_reach=13_000)
    assert main([str(tmp_path / name) for name in ("w32", "w64", "w128", "open")]) == 0
    lines = capsys.readouterr().out.split("left out in turn", 1)[1].splitlines()[2:]
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    assert rows[0] == ["window 32", "3.2e+04", "16", "17", "0 to 31", "yes", "+6%"]
    # residuals +-ln 1.5: s = 0.573, the margin t(.975, 1) s sqrt(1 + 1/2) = 12.71 * 0.573 * 1.22 = 8.9 nats
    by_name = {row[0]: row[2:] for row in rows}
    assert by_name["window 256"][0] == ">=204"
    assert by_name["window 256"][1] == str(256 - math.ceil(30_652 / 250))
    assert by_name["window 256"][3:] == ["-", "-35%"], "133 instead of 204, and no limits to hold an open reach"
    assert next(line for line in lines if line.startswith("mean error")).endswith("3 of 3 within the limits")
