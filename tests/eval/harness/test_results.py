"""Intervals and rows of eval.harness, against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy.stats import binom
from scipy.stats import t as student

from eval.harness.intervals import interval
from eval.harness.model import Cost
from eval.harness.results import cases_of, rows_of, table


def test_shares_have_exact_limits():
    """Three of ten, by the tails of the binomial distribution: each limit leaves 2.5% beyond what was seen."""
    low, high, kind = interval("acc", 0.3, [1.0] * 3 + [0.0] * 7, 0.1527)
    assert (binom.sf(2, 10, low), binom.cdf(3, 10, high), kind) == (pytest.approx(0.025), pytest.approx(0.025), "exact")
    assert interval("acc", 1.0, [True] * 4).high == 1.0


def test_means_have_the_t_interval():
    values = [0.2, 0.9, 0.4, 0.5]
    half = student.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    assert interval("f1", 0.5, values) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half), "t")
    assert interval("f1", 0.5, [0.5, 0.5]) == (0.5, 0.5, "t")


def test_perplexities_have_that_of_a_ratio():
    each = [(-4.0, 2), (-3.0, 3), (-8.0, 5)]
    loss = 15 / 10
    residuals = np.array([4 - loss * 2, 3 - loss * 3, 8 - loss * 5])
    half = student.ppf(0.975, 2) * math.sqrt(3 / 2 * (residuals**2).sum()) / 10
    low, high, kind = interval("byte_perplexity", math.exp(loss), each)
    assert (math.log(low), math.log(high), kind) == (pytest.approx(loss - half), pytest.approx(loss + half), "ratio")
    bits = interval("bits_per_byte", loss / math.log(2), each)
    assert (bits.low, bits.high) == pytest.approx(((loss - half) / math.log(2), (loss + half) / math.log(2)))
    assert interval("word_perplexity", 1.0, each) is None  # not what the documents give


@pytest.mark.parametrize(
    ("score", "each"),
    [
        (0.51, [0.2, 0.9, 0.4, 0.5]),  # not their mean
        (0.5, [(0, 1), (1, 0), (1, 1)]),  # F1's pairs of gold and prediction
        (12.5, [("a reference", "an answer"), ("a", "b")]),  # BLEU's texts
        (0.5, []),  # a group
        (1.0, [1.0]),  # one document
    ],
    ids=str,
)
def test_other_numbers_have_the_harness_s_standard_error(score, each):
    assert interval("f1", score, each) is None
    assert interval("f1", score, each, "N/A") is None
    assert interval("f1", score, each, float("nan")) is None
    low, high, kind = interval("f1", score, each, 0.1)
    assert (low, high, kind) == (pytest.approx(score - 0.1959964), pytest.approx(score + 0.1959964), "stderr")


def test_a_number_that_is_none_has_no_interval():
    assert interval("x", "N/A", [1.0, 0.0], 0.1) is None


RESULTS = {
    "results": {
        "a": {
            "alias": "a",
            "acc,none": 0.5,
            "acc_stderr,none": 0.25,
            "f,strict": np.float32(0.5),
            "f_stderr,strict": 0.125,
            "f_stderr,none": "N/A",
        },
        "all": {"acc,none": 0.6, "acc_stderr,none": 0.1},
    },
    "versions": {"a": 2.0},
    "higher_is_better": {"a": {"acc": True}},
    "n-shot": {"a": 5},
    "n-samples": {"a": {"original": 9, "effective": 2}, "b": {"original": 3, "effective": 3}},
    "group_subtasks": {"all": ["inner", "b"], "inner": ["a"]},
    "samples": {
        "a": [
            {
                "doc_id": number,
                "prompt_hash": f"{number}" * 64,
                "target": number,
                "filtered_resps": ["said"],
                "filter": name,
                "metrics": ["acc", "f"],
                "acc": float(number),
                "f": (0, number),
                "arguments": [(f"a {number}",)],
            }
            for name in ("none", "strict")
            for number in (1, 0)
        ],
        "b": [{"arguments": [("b",), ("b",)], "filter": "none", "doc_id": 0}],
    },
}
COSTS = {("a 0",): Cost(30, True, 0.5), ("a 1",): Cost(40, False, 0.25), ("b",): Cost(35, True, 1.0)}


def costs(arguments):
    return [COSTS[each] for each in dict.fromkeys(arguments)]


def test_rows_by_hand():
    acc, f, group = rows_of(RESULTS, costs)
    same = {"task": "a", "task_version": 2.0, "fewshot": 5, "n": 2, "confidence": 0.95, "longest": 40, "cut": 1}
    same |= {"requests": 2, "seconds": 0.75, "score": 0.5}
    # one of two: 1 - (1 - p)^2 = 0.025 and 1 - p^2 = 0.025
    limits = {"low": pytest.approx(1 - math.sqrt(0.975)), "high": pytest.approx(math.sqrt(0.975)), "interval": "exact"}
    assert acc == same | limits | {"metric": "acc", "filter": "none", "higher_is_better": True, "stderr": 0.25}
    limits = {"low": pytest.approx(0.5 - 0.2449955), "high": pytest.approx(0.5 + 0.2449955), "interval": "stderr"}
    assert f == same | limits | {"metric": "f", "filter": "strict", "stderr": 0.125, "higher_is_better": None}
    assert [group[key] for key in ("task", "n", "requests", "longest", "cut", "seconds")] == ["all", 5, 3, 40, 2, 1.75]
    assert (group["score"], group["interval"]) == (0.6, "stderr")


def test_cases_by_hand():
    first, second = cases_of(RESULTS, "a", "none")
    assert first["test"] == 0
    assert second == {
        "test": 1,
        "prompt_hash": "1" * 16,
        "expected": "1",
        "answer": "['said']",
        "scores": {"acc": 1.0, "f": [0.0, 1.0]},
    }
    assert cases_of(RESULTS, "all", "none") == []


def test_the_table():
    about = {"model": "m", "method": "rope+plain", "protocol": "lm-eval-1", "length": 64}
    lines = table([{**about, **row} for row in rows_of(RESULTS, costs)]).splitlines()
    assert lines[0] == "m: rope+plain; lm-eval-1, texts of at most 64 tokens"
    assert lines[3].split() == ["a", "acc", "none", "5", "2", "0.5000", "0.01258", "to", "0.9874", "exact", "40", "0.8"]
    assert lines[4].split() == ["a", "f", "strict", "5", "2", "0.5000", "0.255", "to", "0.745", "stderr", "40", "0.8"]
    assert len({len(line) for line in lines[2:]}) == 1
