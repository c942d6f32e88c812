"""eval.compare: which rows share a line, which differences are significant, and by which test."""

import csv
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from eval.compare.results import FISHER, LIMITS, MCNEMAR, PAIRED_T, compare, paired, paired_t
from scipy.stats import binomtest, fisher_exact, ttest_rel

from eval.common.statistics import holm
from eval.compare.__main__ import main
from eval.compare.records import read_records
from eval.compare.table import arrange, markdown
from eval.perplexity.__main__ import main as perplexity
from lab.errors import DataError
from lab.probe.intervals import exact_limits
from lab.probe.sequential import sequential_design
from tests.eval.commands import runner

ROOT = Path(__file__).resolve().parents[2]
SUBJECT = {"model": "m", "checkpoint": "tokens-1", "weights": "w", "precision": "float32", "method": "rope+plain"}
PASSKEY = {
    **SUBJECT,
    "metric": "passkey",
    "protocol": "passkey",
    "digits": 5,
    "filler": None,
    "answer_budget": 12,
    "seed": 0,
    "length": 128,
    "depth": 0.5,
    "n": 10,
    "passed": 3,
    "score": 0.3,
    "low": 0.07,
    "high": 0.65,
}
NEEDLES = {"needles": 4, "digits": 3, "required": 2, "answer_budget": 20, "haystack": "h"}
ROWS = {  # a row of every kind, with its evaluation, task, unit and score
    "passkey": (PASSKEY, "depth 50%", "share", 0.3),
    "ruler": (
        {**SUBJECT, "protocol": "ruler", "version": 1, "task": "vt", "length": 512, "n": 20, "seed": 0, "score": 55.0},
        *("vt", "percent", 55.0),
    ),
    "lines": (
        {
            **SUBJECT,
            "metric": "line_retrieval",
            "protocol": "longeval",
            "answer_budget": 32,
            "by": "lines",
            "asked": 20,
            "length": 400,
            "n": 5,
            "passed": 4,
            "score": 0.8,
            "seed": 0,
        },
        *("20 lines", "share", 0.8),
    ),
    "perplexity": (
        {
            **SUBJECT,
            "metric": "perplexity",
            "protocol": "sliding-window",
            "texts": "t",
            "stride": 8,
            "length": 64,
            "n": 3,
            "score": 9.5,
            "low": 9.0,
            "high": 10.0,
            "seed": 0,
        },
        *("stride 8", "perplexity", 9.5),
    ),
    "methods": (
        {
            **SUBJECT,
            **NEEDLES,
            "metric": "needles_by_method",
            "protocol": "ours",
            "length": 192,
            "n": 8,
            "passed": 6,
            "score": 0.75,
        },
        *("2 of 4 needles", "share", 0.75),
    ),
    "heatmap": (
        {
            **SUBJECT,
            **NEEDLES,
            "metric": "found_by_depth",
            "protocol": "ours",
            "length": 192,
            "tests": 8,
            "depths": 4,
            "n": 8,
            "from_depth": 0.0,
            "to_depth": 0.25,
            "found": 2,
            "score": 0.25,
        },
        *("depth 0% to 25%", "share", 0.25),
    ),
    "thirds": (
        {
            **SUBJECT,
            **NEEDLES,
            "metric": "failures_by_third",
            "protocol": "ours",
            "length": 192,
            "tests": 8,
            "third": "first",
            "n": 6,
            "failures": 3,
            "score": 0.5,
        },
        *("failures in the first third", "share", 0.5),
    ),
    "harness": (
        {
            **SUBJECT,
            "protocol": "lm-eval-0.4.13",
            "task": "mmlu",
            "metric": "acc",
            "filter": "none",
            "length": 2048,
            "n": 12,
            "score": 0.5,
            "higher_is_better": True,
        },
        *("mmlu acc", "score", 0.5),
    ),
}


def write(folder, *rows, name="rows.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def records_of(*folders):
    return read_records(list(folders))[0]


def passkey(folder, passes, name="a", hashes=None, **changes):
    """Write a passkey row with its tests."""
    records = [
        {"test": k, "prompt_hash": hashes[k] if hashes else f"p{k}", "passed": bool(p)} for k, p in enumerate(passes)
    ]
    write(folder / f"{name}-cases", *records, name="x.jsonl")
    n, passed = len(passes), sum(passes)
    row = {**PASSKEY, "method": name, "n": n, "passed": passed, "score": passed / n, "cases": f"{name}-cases/x.jsonl"}
    return {**row, **changes}


@pytest.mark.parametrize("evaluation", ROWS)
def test_a_row_of_every_kind(tmp_path, evaluation):
    row, task, unit, score = ROWS[evaluation]
    (record,) = records_of(write(tmp_path, row))
    assert (record.evaluation, record.task, record.unit, record.score) == (evaluation, task, unit, score)
    assert (record.model, record.method, record.n) == ("m", "rope+plain", row["n"])
    assert record.passed == {"passkey": 3, "lines": 4, "methods": 6, "heatmap": 2, "thirds": 3}.get(evaluation)
    assert record.higher_is_better == {"perplexity": False, "thirds": None}.get(evaluation, True)


def test_all_kinds_stand_in_one_table(tmp_path):
    rows = [row for row, *_ in ROWS.values()]
    others = [{**row, "method": "rope+string"} for row in rows]
    grid = arrange(records_of(write(tmp_path, *rows, *others)), None)
    assert grid.headings == ["rope+plain", "rope+string"]
    assert (len(grid.lines), len(grid.cells)) == (len(ROWS), 2 * len(ROWS))


@pytest.mark.parametrize(
    ("evaluation", "change"),
    [
        ("passkey", {"protocol": "lab"}),
        ("passkey", {"seed": 1}),
        ("passkey", {"filler": "other"}),
        ("passkey", {"depth": 0.25}),
        ("passkey", {"answer_budget": 13}),
        ("ruler", {"source": "essays"}),
        ("ruler", {"version": 2}),
        ("lines", {"by": "length"}),
        ("perplexity", {"texts": "other"}),
        ("perplexity", {"stride": 16}),
        ("perplexity", {"length": 128}),
        ("methods", {"needles": 8}),
        ("methods", {"required": 4}),
        ("methods", {"haystack": "other"}),
        ("heatmap", {"depths": 8}),
        ("heatmap", {"tests": 9}),
        ("thirds", {"digits": 6}),
        ("harness", {"fewshot": 5}),
        ("harness", {"metric": "acc_norm"}),
        ("harness", {"filter": "strict"}),
        ("harness", {"limit": 5}),
    ],
    ids=str,
)
def test_what_cannot_be_compared_shares_no_line(tmp_path, evaluation, change):
    row = ROWS[evaluation][0]
    grid = arrange(records_of(write(tmp_path, row, {**row, "method": "other", **change})), None)
    assert (len(grid.lines), len(grid.columns)) == (2, 2)
    assert not grid.verdicts
    assert markdown(grid).count(" - ") == 2


def test_mcnemar_on_the_same_tests(tmp_path):
    # 9 tests that the second passes alone, 1 that the first does: 2 (C(10,0) + C(10,1)) / 2^10 = 22 / 1024
    first, second = [0] * 9 + [1] + [1] * 5, [1] * 9 + [0] + [1] * 5
    rows = [passkey(tmp_path, first), passkey(tmp_path, second, "b")]
    verdict = compare(*records_of(write(tmp_path, *rows)))
    assert (verdict.test, verdict.raw_p) == (MCNEMAR, 22 / 1024)
    assert verdict.raw_p == pytest.approx(binomtest(1, 10).pvalue)


def test_tests_that_are_not_all_recorded_are_not_taken_for_all(tmp_path):
    rows = [passkey(tmp_path, [1, 1, 1]), passkey(tmp_path, [0, 0, 0], "b")]
    for name in "ab":
        file = tmp_path / f"{name}-cases/x.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    assert compare(*records_of(write(tmp_path, *rows))).test == FISHER


@pytest.mark.parametrize("why", ["other_prompts", "no_cases", "another_n"])
def test_fisher_where_tests_are_not_the_same(tmp_path, why):
    first, second = [1] * 3, [0] * 3
    changes = {"no_cases": {"cases": "none.jsonl"}}.get(why, {})
    hashes = ["q0", "q1", "q2"] if why == "other_prompts" else None
    second = [0] * 4 if why == "another_n" else second
    rows = [passkey(tmp_path, first), passkey(tmp_path, second, "b", hashes, **changes)]
    verdict = compare(*records_of(write(tmp_path, *rows)))
    # 3 of 3 against 0 of 3: two tables of 1 / C(6,3) each; against 0 of 4: one of 1 / C(7,3), the other end is likelier
    expected = 1 / math.comb(7, 3) if why == "another_n" else 2 / math.comb(6, 3)
    assert (verdict.test, verdict.raw_p) == (FISHER, pytest.approx(expected))


def test_fisher_by_counting_all_tables(tmp_path):
    rows = [{**PASSKEY, "n": n, "passed": a, "score": a / n, "method": m} for m, n, a in (("a", 11, 9), ("b", 8, 2))]
    outcomes = [1] * 11 + [0] * 8  # which 11 tests are in the first row
    found = math.comb(11, 9) * math.comb(8, 2)
    ways = [math.comb(11, k) * math.comb(8, 11 - k) for k in range(3, 12)]
    expected = sum(way for way in ways if way <= found) / math.comb(len(outcomes), 11)
    verdict = compare(*records_of(write(tmp_path, *rows)))
    assert verdict.raw_p == pytest.approx(expected)
    assert verdict.raw_p == pytest.approx(fisher_exact([[9, 2], [2, 6]]).pvalue)


def test_paired_t():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 12))
    assert paired_t(second - first) == pytest.approx(ttest_rel(first, second).pvalue)
    # d = 1, 2, 3: mean 2, s 1, t = 2 sqrt(3); with two degrees of freedom P(T > t) = (1 - t / sqrt(2 + t^2)) / 2
    assert paired_t([1.0, 2.0, 3.0]) == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14))
    assert paired_t([2.0, 2.0]) is None
    keys = range(12)
    verdict = paired(dict(zip(keys, first, strict=True)), dict(zip(reversed(keys), second[::-1], strict=True)))
    assert (verdict.test, verdict.raw_p) == (PAIRED_T, pytest.approx(ttest_rel(first, second).pvalue))


def test_perplexities_are_compared_by_the_documents_losses(tmp_path):
    losses = {"a": [(4.0, 2), (3.0, 3), (8.0, 4)], "b": [(5.0, 2), (6.0, 3), (9.0, 4)]}
    for name, pairs in losses.items():
        write(tmp_path / "c-cases", *({"test": k, "nll": x, "tokens": t} for k, (x, t) in enumerate(pairs)), name=name)
    rows = [{**ROWS["perplexity"][0], "method": name, "cases": f"c-cases/{name}"} for name in losses]
    found = compare(*records_of(write(tmp_path, *rows)))
    assert (found.test, found.raw_p) == (PAIRED_T, pytest.approx(ttest_rel([2, 1, 2], [2.5, 2, 2.25]).pvalue))


def test_a_score_without_outcomes_has_no_test(tmp_path):
    row = ROWS["perplexity"][0]
    grid = arrange(records_of(write(tmp_path, row, {**row, "method": "b", "score": 5.0})), None)
    (verdict,) = grid.verdicts.values()
    assert (verdict.test, verdict.p, verdict.significant) == (None, None, False)
    text = markdown(grid)
    assert "**5 (9 to 10), n=3**?" in text
    assert "? no test (1)" in text


def test_all_comparisons_of_a_table_are_corrected_together(tmp_path):
    counts = {"a": (10, 10), "b": (2, 9), "c": (1, 4)}
    rows = [
        {**PASSKEY, "method": name, "depth": depth, "passed": passed, "score": passed / 10}
        for name, pair in counts.items()
        for depth, passed in zip((0.0, 1.0), pair, strict=True)
    ]
    grid = arrange(records_of(write(tmp_path, *rows)), None)
    raw = {
        (name, k): fisher_exact([[10, 0], [counts[name][k], 10 - counts[name][k]]]).pvalue
        for name, k in itertools.product("bc", (0, 1))
    }
    expected = holm(raw)
    lines = {line[1]: line for line in grid.lines}
    for (name, k), p in expected.items():
        column = next(column for column in grid.columns if name in column)
        verdict = grid.verdicts[lines[("depth 0%", "depth 100%")[k]], column]
        assert (verdict.p, verdict.significant) == (pytest.approx(p), p <= 0.05)
    text = markdown(grid)
    assert text.count("*\n") + text.count("* ") >= sum(p <= 0.05 for p in expected.values())
    assert "p adjusted for 4 comparisons (Holm)" in text


def test_the_best_of_a_line(tmp_path):
    def bold(row, *scores, key="score"):
        rows = [{**row, key: score, "method": str(k)} for k, score in enumerate(scores)]
        grid = arrange(records_of(write(tmp_path, *rows)), None)
        return [grid.is_best(grid.lines[0], column) for column in grid.columns]

    assert bold(PASSKEY, 0.1, 0.3, 0.3) == [False, True, True]
    assert bold(ROWS["perplexity"][0], 9.0, 8.0, 8.5) == [False, True, False]
    assert bold(ROWS["thirds"][0], 0.5, 0.6, key="share") == [False, False]
    assert bold(PASSKEY, 0.1) == [False]
    assert bold(PASSKEY, 0.1, 0.1) == [False, False]


def needle_tests(founds, length=128):
    return [
        {"length": length, "test": k, "prompt_hash": f"p{k}", "numbers": ["123", "456"], "found": found}
        for k, found in enumerate(founds)
    ]


def probe_row(consumed, passed, tests=4, length=128, **changes):
    known = {"consumed_tokens": consumed, "length": length, "tests": tests, "passed": passed, "n": tests}
    about = {**SUBJECT, "model": "wide", "checkpoint": f"tokens-{consumed:015d}", "weights": None}
    return {
        **about,
        **NEEDLES,
        **known,
        "accuracy": passed / tests,
        "score": passed / tests,
        "protocol": "ours",
        **changes,
    }


def test_probes_take_their_tests_from_cases(tmp_path):
    run = tmp_path / "wide"
    write(run, probe_row(7, 1), {"effective_length": 0}, probe_row(9, 3), name="probes.jsonl")
    write(run / "cases", *needle_tests([0, 2, 1, 1]), name=f"tokens-{7:015d}.jsonl")
    write(run / "cases", *needle_tests([2, 1, 2, 2]), name=f"tokens-{9:015d}.jsonl")
    first, second = records_of(run)
    assert (first.model, first.task, second.checkpoint) == ("wide", "2 of 4 needles", f"tokens-{9:015d}")
    verdict = compare(first, second)
    # passed with two numbers: 0 1 0 0 and 1 0 1 1, four tests apart: 2 (1 + 4) / 16
    assert (verdict.test, verdict.raw_p) == (MCNEMAR, 10 / 16)
    grid = arrange([second, first], None)
    assert (grid.older, [record.checkpoint for record in grid.cells.values()]) == (1, [f"tokens-{9:015d}"])
    grid = arrange([first, second], ["checkpoint"])
    assert (len(grid.lines), len(grid.columns), grid.older) == (1, 2, 0)


def test_lengths_that_stopped_early_are_compared_by_their_limits(tmp_path):
    """2 and 18 of 20: the limits meet at 1/2 where P(X <= 2) = (1 + 20 + 190) / 2^20 = a / 4."""
    stops = {"tests": 20, "thresholds": [0.8], "error": 0.0, "round": 20}  # one look, at all tests
    run = write(tmp_path / "a", probe_row(7, 2, 20, stops=stops), probe_row(9, 18, 20), name="probes.jsonl")
    verdict = compare(*records_of(run))
    assert (verdict.test, verdict.raw_p) == (LIMITS, pytest.approx(4 * 211 / 2**20, rel=1e-4))
    same = write(tmp_path / "b", probe_row(7, 2, 20, stops=stops), probe_row(9, 3, 20, stops=stops))
    assert compare(*records_of(same)).raw_p == 1
    far = write(tmp_path / "c", probe_row(7, 0, 500, stops={**stops, "tests": 500}), probe_row(9, 500, 500))
    assert compare(*records_of(far)).raw_p == 1e-12


def test_equal_models_that_stop_early_seldom_differ(tmp_path):
    """At every share, p <= 0.05 comes with a probability of 0.05 or less, summed over all ways to stop."""
    stops = {"tests": 60, "thresholds": [0.8], "error": 0.02, "round": 6}
    design = sequential_design(60, (0.8,), 0.02, 6)
    tests, passed, _ = design.points
    limits = [exact_limits(design, n, x, 0.975) for n, x in zip(tests.tolist(), passed.tolist())]
    low, high = np.array(limits).T
    differ = low[:, None] > high[None]
    pairs = [(a, b) for a, b in np.argwhere(differ | differ.T)[::97]]
    assert pairs
    for a, b in pairs:
        rows = [probe_row(k, int(passed[k]), int(tests[k]), stops=stops) for k in (int(a), int(b))]
        p = compare(*records_of(write(tmp_path / f"{a}-{b}", *rows))).raw_p
        assert p <= 0.05
        ends = [exact_limits(design, row["n"], row["passed"], 1 - p / 2) for row in rows]
        (_, touching), (other, _) = sorted(ends)
        assert touching == pytest.approx(other, abs=1e-5)
    for share in (0.1, 0.5, 0.75, 0.8, 0.9):
        chance = design.stopping_probabilities(np.array([share]))[0]
        assert chance @ (differ | differ.T) @ chance <= 0.05


def test_method_rows_take_their_tests_from_the_files_beside_them(tmp_path):
    base = {**ROWS["methods"][0], "length": 128, "n": 4, "seed": 0}
    rows = [{**base, "method": name, "passed": passed, "score": passed / 4} for name, passed in (("a", 1), ("b", 3))]
    for name, founds in (("a", [0, 2, 1, 1, 4]), ("b", [2, 1, 2, 3, 0]), ("c", [4, 4, 4, 4])):
        key = {"weights": "w-long", "method": name, "precision": "fp32", "protocol": "ours", "haystack": "h-long"}
        head = {"key": {**key, "needles": 4, "digits": 3, "answer_budget": 20, "seed": 0}}
        write(tmp_path, head, *needle_tests(founds), name=f"tests-1-{name}.jsonl")
    verdict = compare(*records_of(write(tmp_path, *rows, name="methods.jsonl")))
    assert (verdict.test, verdict.raw_p) == (MCNEMAR, 10 / 16)


def test_harness_rows_take_the_scores_of_their_metric(tmp_path):
    for name, acc, f1 in (("a", [0, 0, 1], [0.1, 0.2, 0.9]), ("b", [1, 1, 1], [0.3, 0.1, 0.8])):
        cases = [{"test": k, "prompt_hash": str(k), "scores": {"acc": acc[k], "f1": f1[k]}} for k in range(3)]
        write(tmp_path / "harness-cases", *cases, name=f"{name}.jsonl")
    row = {**ROWS["harness"][0], "n": 3}
    rows = [{**row, "method": m, "metric": s, "cases": f"harness-cases/{m}.jsonl"} for s in ("acc", "f1") for m in "ab"]
    acc_a, acc_b, f1_a, f1_b = records_of(write(tmp_path, *rows))
    assert (compare(acc_a, acc_b).test, compare(acc_a, acc_b).raw_p) == (MCNEMAR, 0.5)
    found = compare(f1_a, f1_b)
    assert (found.test, found.raw_p) == (PAIRED_T, pytest.approx(ttest_rel([0.1, 0.2, 0.9], [0.3, 0.1, 0.8]).pvalue))


def test_harness_texts_are_compared_by_loss(tmp_path):
    losses = {"a": [(-4.0, 2), (-3.0, 3), (-8.0, 4)], "b": [(-5.0, 2), (-6.0, 3), (-9.0, 4)]}
    for name, pairs in losses.items():
        cases = [{"test": k, "prompt_hash": str(k), "scores": {"word_perplexity": p}} for k, p in enumerate(pairs)]
        write(tmp_path / "harness-cases", *cases, name=f"{name}.jsonl")
    row = {**ROWS["harness"][0], "n": 3, "metric": "word_perplexity", "higher_is_better": False}
    found = compare(
        *records_of(write(tmp_path, *({**row, "method": m, "cases": f"harness-cases/{m}.jsonl"} for m in losses)))
    )
    # losses per word 2, 1, 2 and 2.5, 2, 2.25
    assert (found.test, found.raw_p) == (PAIRED_T, pytest.approx(ttest_rel([2, 1, 2], [2.5, 2, 2.25]).pvalue))


def test_other_weights_stand_apart_and_repeated_results_are_counted(tmp_path):
    other = {**PASSKEY, "weights": "other"}
    grid = arrange(records_of(write(tmp_path, PASSKEY, other)), None)
    assert (len(grid.lines), len(grid.columns), grid.headings) == (1, 2, ["w", "other"])
    again = {**PASSKEY, "n": 20, "passed": 9, "score": 0.45}
    grid = arrange(records_of(write(tmp_path, again, PASSKEY)), None)
    assert (grid.again, [record.n for record in grid.cells.values()]) == (1, [20])


def test_columns_by_length(tmp_path):
    rows = [{**PASSKEY, "length": length} for length in (1024, 128, 512)]
    grid = arrange(records_of(write(tmp_path, *rows)), ["length"])
    assert (grid.headings, len(grid.lines)) == (["128", "512", "1,024"], 1)


run = runner(main)


def test_real_rows_of_a_run(run_folder, tmp_path, capsys):
    base = [run_folder, "--documents=3", "--lengths=24", "--stride=8", "-o", tmp_path / "a"]
    assert perplexity([str(word) for word in base]) == 0
    string = ["--position.distance.method=string", "--position.distance.shift=8", "--position.distance.window=1"]
    assert perplexity([str(word) for word in [*base, *string]]) == 0
    first, second = records_of(tmp_path / "a")
    tests = [
        [json.loads(x) for x in (tmp_path / "a" / r.row["cases"]).read_text().splitlines()] for r in (first, second)
    ]
    for record, each in zip((first, second), tests, strict=True):
        loss = sum(test["nll"] for test in each) / sum(test["tokens"] for test in each)
        assert math.exp(loss) == pytest.approx(record.score)
    means = [[test["nll"] / test["tokens"] for test in each] for each in tests]
    capsys.readouterr()
    status, out, _ = run([tmp_path / "a", "-o", tmp_path / "t.csv"], capsys)
    assert (status, "2 results in 1 lines" in out) == (0, True)
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [row["method"] for row in rows] == ["rope+plain", "rope+string(shift=8,window=1)"]
    assert rows[1]["test"] == PAIRED_T
    assert float(rows[1]["p"]) == pytest.approx(ttest_rel(*means).pvalue)
    assert float(rows[0]["score"]) == first.score
    assert run([tmp_path / "a", "-o", tmp_path / "t.html"], capsys)[0] == 0
    page = (tmp_path / "t.html").read_text()
    assert "perplexity stride 8 24 tokens" in page
    assert page.count("<td>") == 2
    done = subprocess.run(
        [sys.executable, "-m", "eval.compare", str(tmp_path / "a")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0].split("|")[2].strip() == "rope+plain"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["none"], "none: no such file or folder"),
        (["empty"], "empty: no results"),
        (["rows.jsonl", "--by=size"], "--by=size: unknown field"),
        (["rows.jsonl", "--by=model,model"], "is given twice"),
        (["rows.jsonl", "--sort=n"], "--sort=n: unknown setting"),
        (["rows.jsonl", "-o", "t.pdf"], "-o t.pdf: must end in"),
        (["--by=model"], "PATH: must be set"),
        (["broken.jsonl"], "not JSON"),
        (["binary.jsonl"], "not text"),
        (["list.jsonl"], "no results"),
        (["lacking.jsonl"], "a row of passkey lacks 'n'"),
    ],
    ids=str,
)
def test_wrong_input_is_a_line(tmp_path, monkeypatch, capsys, words, fault):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(tmp_path, PASSKEY)
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    write(tmp_path, {k: v for k, v in PASSKEY.items() if k != "n"}, name="lacking.jsonl")
    status, _, err = run(words, capsys)
    assert (status, fault in err) == (2, True)
    assert "Traceback" not in err


def test_other_rows_are_counted(tmp_path, capsys):
    write(tmp_path, PASSKEY, {"consumed_tokens": 5, "loss": 1.0})
    assert "1 rows of other measurements are left out." in run([tmp_path], capsys)[1]
    with pytest.raises(DataError):
        read_records([tmp_path / "none"])
