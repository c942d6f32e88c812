"""eval.compare: which rows share a line, what is folded, which differences are significant, and by which test."""

import itertools
import json
import math
import re
from collections import namedtuple

import numpy as np
import pandas as pd
import pytest
from scipy.stats import fisher_exact, t

import lab
from eval.compare import arrange, compute_verdict, describe_power, least_growth, main, to_table
from eval.reach import read_points
from lab.analysis.table import read_result_table, unpacked
from lab.core.errors import ConfigError
from lab.core.yaml import format_yaml
from lab.results.statistics import (
    FISHER,
    NONE,
    SEEDS,
    SEEDS_PAIRED,
    Verdict,
    bound_seeds,
    compare_over_seeds,
    count_seeds,
    holm,
)
from tests.eval.commands import runner
from tests.forked import ROOT

SUBJECT = {"model": "m", "checkpoint": "tokens-1", "weights": "w", "precision": "float32", "method": "rope+plain"}
NEEDLES = {"needles": 4, "digits": 3, "required": 2, "answer_budget": 20, "haystack": "h", "protocol": "ours"}
PASSKEY = {**SUBJECT, "metric": "passkey", "protocol": "passkey", "digits": 5, "filler": None, "answer_budget": 12}
PASSKEY |= {"seed": 0, "length": 128, "depth": 0.5, "n": 10, "passed": 3, "score": 0.3, "low": 0.07, "high": 0.65}
LINES = {**SUBJECT, "metric": "line_retrieval", "protocol": "longeval", "answer_budget": 32, "by": "length"}
LINES |= {"asked": 20, "length": 400, "n": 5, "passed": 4, "score": 0.8, "seed": 0}
PERPLEXITY = {**SUBJECT, "metric": "perplexity", "protocol": "sliding-window", "texts": "t", "stride": 8, "length": 64}
PERPLEXITY |= {"n": 3, "score": 9.5, "low": 9.0, "high": 10.0, "seed": 0}
RULER = {**SUBJECT, "protocol": "ruler", "version": 1, "task": "vt", "length": 512, "n": 20, "seed": 0, "score": 55.0}
HARNESS = {**SUBJECT, "protocol": "lm-eval-0.4.13", "task": "mmlu", "metric": "acc", "filter": "none", "length": 2048}
HARNESS |= {"n": 12, "score": 0.5}
METHODS = {**SUBJECT, **NEEDLES, "metric": "needles_by_method", "length": 192, "n": 8, "passed": 6, "score": 0.75}
ROWS = {  # a row of every kind, its task, its unit, what passed, and changes with which it cannot be compared
    "passkey": (
        *(PASSKEY, "passkey, depth 50%", "share", 3),
        {"protocol": "lab", "seed": 1, "filler": "other", "depth": 0.25, "answer_budget": 13},
    ),
    "ruler": (RULER, "vt", "percent", None, {"source": "essays", "version": 2}),
    "lines": (LINES, "lines", "share", 4, {"asked": 40}),
    "perplexity": (
        PERPLEXITY,
        "perplexity, stride 8",
        "perplexity",
        None,
        {"texts": "other", "stride": 16, "length": 128},
    ),
    "probe": (METHODS, "2 of 4 needles", "share", 6, {"needles": 8, "required": 4, "haystack": "other"}),
    "harness": (HARNESS, "mmlu acc", "score", None, {"fewshot": 5, "metric": "f1", "limit": 5}),
}


def write(folder, *rows, name="rows.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def grid_of(*folders, by=()):
    return arrange(read_result_table(list(folders)), by)[0]


def compared(*folders):
    """Compare the first two results, as read."""
    cells = grid_of(*folders, by=["checkpoint", "method"])
    return compute_verdict(*itertools.islice(cells.itertuples(), 2))[:2]


def table_of(grid):
    return {(cell.line, cell.column): cell for cell in grid.itertuples()}


@pytest.mark.parametrize("evaluation", ROWS)
def test_a_row_of_every_kind_shares_no_line_with_what_cannot_be_compared(tmp_path, evaluation):
    row, task, unit, passed, changes = ROWS[evaluation]
    (record,) = read_result_table([write(tmp_path, row)]).rows.replace({np.nan: None}).itertuples()
    assert (record.measure, record.metric, record.unit, record.score) == (evaluation, task, unit, row["score"])
    assert (record.checkpoint, record.method, record.n, record.passed) == ("tokens-1", "rope+plain", row["n"], passed)
    for name, value in changes.items():
        grid = grid_of(write(tmp_path / name, row, {**row, "method": "other", name: value}))
        missing = (to_table(grid) == "-").to_numpy().tolist()
        assert missing in ([[False, True], [True, False]], [[True, False], [False, True]]), name
        assert not grid.compared.any()


def test_results_of_a_run_and_of_other_weights_have_lines_of_their_own(tmp_path):
    """A run's own records name no weights: pandas counts nan as no value."""
    rows = [{**PASSKEY, "weights": weights} for weights in ("a", None)]
    table = to_table(grid_of(write(tmp_path, *rows), by=["checkpoint"]))
    assert [line.split()[-1] for line in table.index] == ["-", "a"]


def test_shares_of_tests_are_compared_by_fisher(tmp_path):
    rows = [{**PASSKEY, "n": 3, "passed": 3}, {**PASSKEY, "n": 4, "passed": 0, "method": "other"}]
    # 3 of 3 against 0 of 4: one table of 1 / C(7,3), the other end is likelier
    assert compared(write(tmp_path, *rows)) == (FISHER, pytest.approx(1 / math.comb(7, 3)))


def test_all_comparisons_of_a_table_are_corrected_together(tmp_path):
    counts = {("a", 0): 10, ("a", 1): 10, ("b", 0): 2, ("b", 1): 9, ("c", 0): 1, ("c", 1): 4}
    rows = [{**PASSKEY, "method": m, "depth": d, "passed": k, "score": k / 10} for (m, d), k in counts.items()]
    grid = grid_of(write(tmp_path, *rows))
    raw = {key: fisher_exact([[10, 0], [k, 10 - k]]).pvalue for key, k in counts.items() if key[0] != "a"}
    for (name, depth), p in holm(pd.Series(raw)).items():
        cell = table_of(grid)[f"passkey, depth {depth:.0%} at 128", name]
        assert cell.p_adjusted == pytest.approx(p)
        assert to_table(grid).loc[cell.line, name].endswith("*") == (p <= 0.05)


def probe_row(consumed, passed, tests=4, length=128, **changes):
    known = {"consumed_tokens": consumed, "length": length, "tests": tests, "passed": passed, "n": tests}
    about = {**SUBJECT, "model": "wide", "checkpoint": f"tokens-{consumed:015d}", "weights": None}
    return {**about, **NEEDLES, **known, "accuracy": passed / tests, "score": passed / tests, **changes}


def test_lengths_that_stopped_early_are_not_tested(tmp_path):
    """How many tests they have depends on their outcomes."""
    stops = {"tests": 20, "thresholds": [0.8], "error": 0.0, "round": 20}
    assert compared(write(tmp_path, probe_row(7, 2, 20, stops=stops), probe_row(9, 18, 20)))[0] is None


def write_run(folder, window, seed, passed, **summary):
    """Make a run folder with one probe, its tests drawn with the run's own seed from its own corpus."""
    name = f"w{window}-{seed}"
    config = {"run": {"name": name, "seed": seed}, "data": {"window": window}, "position": {"distance": {"window": 3}}}
    row = probe_row(1000 + seed, passed, 10, model=name, seed=seed, haystack=f"text of {window}")
    last = {key: row[key] for key in row if key not in ("length", "accuracy", "score", "passed", "n")}
    run = write(folder / name, row, {**last, "threshold": 0.8, "tests": 10, **summary}, name="probes.jsonl")
    (run / "config.yaml").write_text(format_yaml(config))
    return run


@pytest.fixture
def windows(tmp_path):
    found = {(96, 0): (2, 64), (96, 1): (4, 96), (96, 2): (6, 80), (192, 0): (8, None), (192, 1): (9, 160)}
    ends = {"low": 0, "high": None, "first_length": 64}
    return [write_run(tmp_path, *key, passed, effective_length=x, **ends) for key, (passed, x) in found.items()]


def test_seeds_are_folded_into_their_mean_with_limits(windows):
    cells = table_of(grid_of(*windows, by=["window"]))
    first, second = (cells["2 of 4 needles at 128", window] for window in ("96, n = 3", "192, n = 2"))
    # .2, .4, .6, and 0 and 1: mean .44, s .3847, t_4 = 2.7764: .44 -+ .4777, of which a share has the part above 0
    assert (first.score, first.low, first.high) == (pytest.approx(0.4), 0, pytest.approx(0.9177, abs=1e-4))
    assert (first.seeds, second.seeds, second.score) == (3, 2, pytest.approx(0.85))
    assert (second.compared, pd.isna(second.test), pd.isna(second.p)) == (True, True, True), "three seeds are described"
    first, second = (cells["effective length at 0.8", window] for window in ("96, n = 3", "192, n = 2"))
    # 80 -+ 4.302653 * 16 / sqrt(3)
    assert (first.score, first.low, first.high) == pytest.approx((80, 40.2538, 119.7462), abs=1e-3)
    assert (math.isnan(second.score), second.range) == (True, "<64 to 160")  # no mean: one failed at 64
    shown = to_table(grid_of(*windows, by=["window"])).loc[second.line].tolist()
    assert shown == ["80 (40.3 to 119.7)", "<64 to 160?"]


@pytest.mark.parametrize(
    ("lengths", "text"),
    {
        (112, 128): "112 to 128+",  # 128 is the last length tested
        (128, 128): "128+",
        (None, 128): "<64 to 128+",
        (None, 64): "<64 to 64",
        (112, 120): "116 (65.2 to 166.8)",  # 116 -+ 12.706 * 4
        (128,): "128+ (96 or more), n=10",
    }.items(),
)
def test_no_mean_is_taken_over_a_bound(tmp_path, lengths, text, capsys):
    ends = {"first_length": 64, "last_length": 128, "low": 96, "high": None}
    runs = [write_run(tmp_path, 96, seed, 5, effective_length=length, **ends) for seed, length in enumerate(lengths)]
    table = to_table(grid_of(*runs))
    assert table.loc["effective length at 0.8"].tolist() == [text]
    status, out, _ = run([*runs, "--json"], capsys)
    ranges = sorted((row.get("range") for row in json.loads(out)["rows"]), key=str)
    assert (status, ranges) == (0, sorted([None, text.split(" (")[0] if "+" in text or "<" in text else None], key=str))


def test_fields_are_sorted_as_numbers_and_unknown_ones_are_refused(tmp_path):
    folder = write(tmp_path, *({**PASSKEY, "length": length} for length in (1024, 128, 512)))
    assert to_table(grid_of(folder, by=["length"])).columns.tolist() == ["128", "512", "1,024"]
    with pytest.raises(ConfigError, match="--by=legnth: .*; did you mean length?"):
        grid_of(folder, by=["legnth"])


def test_seeds_without_spread_but_for_rounding_have_no_test():
    """.3 - .1 and .4 - .2 differ in their last bits."""
    assert compare_over_seeds({k: (k + 1) / 10 for k in range(4)}, {k: (k + 3) / 10 for k in range(4)}) == NONE
    assert compare_over_seeds(dict.fromkeys(range(4), 0.1), dict.fromkeys(range(4, 8), 0.8)) == NONE


@pytest.mark.filterwarnings("error")
def test_arms_of_which_one_has_no_spread_are_tested():
    values = [0.5] * 4, [0.7, 0.9, 0.7, 0.9]
    verdict = compare_over_seeds(dict(zip("abcd", values[0])), dict(zip("efgh", values[1])))
    p = 2 * t.sf(0.3 / math.sqrt(0.04 / 3 / 4), 3)  # an error of one arm alone, with its degrees of freedom
    assert (verdict.test, verdict.p) == (SEEDS, pytest.approx(p))


def test_seeds_with_corpora_and_bases_of_their_own_are_one_cell(capsys):
    with unpacked([ROOT / "experiments/demand/records/S1.jsonl.xz"]) as places:
        table, by_window = to_table(grid_of(*places)), to_table(grid_of(*places, by=["window"]))
    assert all(", n = 5" in column for column in table.columns)
    lines = by_window[by_window.index.str.startswith("accuracy at 132")]
    assert (len(lines), list(by_window.columns)) == (5, ["192, n = 5"])


run = runner(main)


def test_notes_and_rows(windows, tmp_path, capsys):
    status, out, _ = run([*windows, "--by=window", "-o", tmp_path], capsys)
    assert (status, "? no test (2): fewer than 4 seeds" in " ".join(out.split())) == (0, True)
    assert len((tmp_path / "compare.jsonl").read_text().splitlines()) == 4


def test_a_table_as_text_fits_and_leaves_out_what_follows(tmp_path, capsys):
    """Columns differ in model and method; each model has a checkpoint of its own, which is left out."""
    rows = [
        {**PASSKEY, "model": model, "checkpoint": f"tokens-{model}", "method": f"rope+string(shift={n},window=32)"}
        for model in ("first", "second")
        for n in (64, 96)
    ]
    status, out, _ = run([write(tmp_path, *rows, *({**row, "filler": "long " * 40} for row in rows)), "--full"], capsys)
    assert status == 0
    lines = out.splitlines()
    assert [line for line in lines if len(line) > 120] == []
    assert "tokens-first" not in out
    assert out.partition("\nShares")[0].count("string(shift=64,window=32)") == 2
    assert out.count("30.0") == 8


def test_wrong_input_is_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(tmp_path, PASSKEY)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    write(tmp_path, {k: v for k, v in PASSKEY.items() if k != "n"}, name="lacking.jsonl")
    faults = {"empty": "empty: no results", "binary.jsonl": "is no record", "lacking.jsonl": "lacks 'n'"}
    for words, fault in faults.items():
        status, _, err = run(words, capsys)
        assert (status, err.count("\n"), fault in err) == (2, 1, True), err


W_1M = ROOT / "experiments/window/records/W_1M.jsonl.xz"


def test_the_main_experiment_is_a_table_of_25_lines(capsys):
    """The growth is that of docs/findings.md: of five seeds, by the reaches there and the t distribution."""
    status, out, _ = run([W_1M], capsys)
    lines = out.splitlines()
    assert (status, len(lines) <= 25, max(map(len, lines)) <= 120) == (0, True, True)
    assert lines[0].split("  ")[-1].endswith("window of 768, n = 5")
    assert [int(head) for head in re.findall(r"window of (\d+), n = 5", lines[0])] == [128, 192, 384, 768]
    names = [line[:20].strip() for line in lines[1 : lines.index("")]]
    distances = [int(name.removeprefix("accuracy at ")) for name in names[2:]]
    assert (names[:2], distances == sorted(distances), len(distances) > 10) == (
        ["reach at 0.8", "growth of ln reach"],
        True,
        True,
    )
    assert ".539 (.368 to .709)" in lines[2]
    assert "2,000,000, 4,000,000 tokens, are not in the table" in " ".join(lines)
    status, full, _ = run([W_1M, "--full"], capsys)
    assert (status, len(full.splitlines()) > 100) == (0, True)
    assert {*re.findall("base model, ([^ ]*) tokens", full)} == {"2,000,000", "4,000,000"}


D = ROOT / "experiments/window/records/D.jsonl.xz"


@pytest.mark.slow
def test_branches_of_bases_of_several_paths_are_eight_conditions(capsys):
    """The reach of a run is that of its own prompts, which docs/findings.md has, not that of essays."""
    status, out, _ = run([D], capsys)
    assert (status, re.findall(r"n = (\d)", out.partition("Shares")[0])) == (0, ["5"] * 8)
    reaches = lab.frame(D, last=True).set_index("run").reach
    assert (reaches["D-30-1_log"], reaches["D-30-4_log"]) == (232.6, 315.2)
    with unpacked([D]) as places:
        table = read_result_table(places, [])
        points = read_points(table, 384).set_index("run")
        assert (points.reach["D-30-1_log"], points.f["D-30-1_log"]) == (232.6, 116_851)
    names = {condition.name for condition in table.conditions.values() if condition.is_base}
    assert names == {"base model"}


@pytest.mark.parametrize(("effect", "n"), [(0.9, 12), (1.5, 6)])
def test_seeds_needed_show_the_difference_in_four_of_five_experiments(effect, n):
    draws = np.random.default_rng(5).normal(effect, 1, (40_000, n + 1))
    powers = []
    for size in (n - 1, n):
        part = draws[:, :size]
        t = part.mean(1) / part.std(1, ddof=1) * size**0.5
        # two-sided 5% of t with 5, 4, 11 and 10 degrees of freedom, from a table
        powers.append(np.mean(np.abs(t) > {6: 2.5706, 5: 2.7764, 12: 2.2010, 11: 2.2281}[size]))
    assert powers[0] < 0.8 <= powers[1]
    assert count_seeds(effect, paired=True) == n


def test_power_is_printed_where_nothing_is_shown(capsys):
    assert main([str(W_1M), "--power"]) == 0
    table, _, power = capsys.readouterr().out.partition("seeds of each column")
    lines = power.splitlines()[1:]
    assert "  accuracy at 72, window of 768, n = 5: 4 (3 to 15)" in lines
    (shown,) = [line for line in table.splitlines() if line.startswith("accuracy at 48")]
    assert shown.count("*") == 2
    assert [line for line in lines if line.startswith("  accuracy at 48")] == [
        "  accuracy at 48, window of 192, n = 5: 6 (4 to 33)"
    ]


def test_power_without_a_difference_is_a_line():
    (line,) = describe_power(pd.DataFrame({"column": ["a"], "number": 0, "seeds": 1, "p_adjusted": math.nan}))
    assert line.startswith("--power has no difference to list")


def test_limits_of_seeds_needed_are_those_of_the_deviation():
    # chi-squared of 4 degrees of freedom at .975 and .025, from a table: 11.143 and .4844
    effects = [1.4, 1.4 * math.sqrt(11.143 / 4), 1.4 * math.sqrt(0.4844 / 4)]
    expected = tuple(count_seeds(effect, paired=True) for effect in effects)
    assert bound_seeds(Verdict(SEEDS_PAIRED, 0.2, 1.4, 4)) == expected
    assert expected[1] < expected[0] < expected[2]


def test_growth_is_the_least_difference_that_the_tests_allow():
    """Reaches of 100 and 150; one at the end, 176 of a window of 192, is 192 at most; none at all has no difference."""
    row = namedtuple("row", "score last high settings")
    at = lambda score, censored=None, high=None: row(score, 176 if censored else 400, high, {"data.window": 192})  # noqa: E731
    assert least_growth(at(100), at(150)) == pytest.approx(math.log(1.5))
    assert least_growth(at(176, "end"), at(300)) == pytest.approx(math.log(300 / 192))
    assert least_growth(at(300), at(176, "end")) == pytest.approx(math.log(192 / 300))
    assert least_growth(at(100), at(None, "below", 24.0)) == pytest.approx(math.log(24 / 100))
    assert least_growth(at(None, "below", 24.0), at(None, "below", 24.0)) is None
    assert least_growth(at(176, "end"), at(180)) == 0.0


def test_seeds_that_all_found_all_are_counted_and_not_pooled(tmp_path, capsys):
    """The limits of 64 of 64: .025^(1/64) = .944."""
    runs = [write_run(tmp_path, 96, seed, 64) for seed in range(5)]
    for run_folder in runs:
        row = probe_row(1, 64, 64, model=run_folder.name, seed=0)
        (run_folder / "probes.jsonl").write_text(json.dumps(row) + "\n")
    out = run(runs, capsys)[1]
    assert "all: 5 of 5 seeds found all (each 94.4 to 100)." in " ".join(out.split())
    assert re.search(r"2 of 4 needles at 128 +all\n", out)


def test_growth_has_a_line_for_each_line_of_reach(tmp_path, capsys):
    """Plain grows by ln 2 and 2 ln 2, under DCA by ln 4 and 0: the means are 1.040 and .693."""
    runs = []
    ends = {"first_distance": 10, "last_distance": 900, "best_distance": None, "dips": []}
    for window, reaches in ((96, ((100, 50), (100, 100))), (192, ((200, 200), (400, 100)))):
        for seed in range(2):
            runs.append(write_run(tmp_path, window, seed, 5, effective_length=64, reach=reaches[0][seed], **ends))
            about = {"metric": "reach", "consumed_tokens": 1000 + seed, "method": "rope+dca", "n": 9, "threshold": 0.8}
            write(runs[-1] / "eval", {**about, **ends, "reach": reaches[1][seed]}, name="distance-1.jsonl")
    status, out, err = run([*runs, "--by=window", "--full"], capsys)
    assert (status, re.findall(r"^growth of ln reach .* - +(\S+) ", out, re.M)) == (0, ["1.040", ".693"]), out + err
