"""The search for LongRoPE's factors against brute force, and the command against eval.distance."""

import itertools
import json
import math

import numpy as np
import pytest

from eval.distance import main as distance
from eval.engine.subject import Subject
from eval.longrope import evolve, main, varied
from lab.config import load_experiment
from lab.loading import open_model
from lab.schema import format_yaml, parse_yaml
from tests.eval.commands import rows_in, runner
from tests.opened import write_run

MOST = 1.25  # of a factor for texts as long as in training: 26 steps of 0.01
PEAKS = {  # highest where factors may not rise, rise, reach both ends, and may not fall
    "ordered": (1.04, 1.17),
    "falling": (1.2, 1.07),
    "ends": (0.9, 1.1, 1.4),
    "falling_in_part": (1.02, 1.21, 1.1),
}


@pytest.mark.parametrize("peaks", PEAKS.values(), ids=PEAKS)
def test_the_search_finds_the_best_of_all_rising_sets(peaks):
    """A separable score; the judge goes through all sets on the grid, with weights that make the best one unique."""
    asked = []

    def height(factors):
        return -sum((k + 1) * (factor - peak) ** 2 for k, (factor, peak) in enumerate(zip(factors, peaks, strict=True)))

    def score(factors):
        asked.append(factors)
        return height(factors)

    first = [(1.0,) * len(peaks), (1.2,) * len(peaks)]
    rng = np.random.default_rng(3)
    tried = evolve(first, score, MOST, rng, 40)
    grid = [round(1 + k / 100, 2) for k in range(26)]
    best = max(itertools.combinations_with_replacement(grid, len(peaks)), key=height)
    assert max(tried, key=tried.get) == pytest.approx(best, abs=1e-9)
    assert len({*asked}) == len(asked) == len(tried), "no set is scored twice"
    for factors in tried:
        assert factors[0] >= 1
        assert factors[-1] <= MOST
        assert list(factors) == sorted(factors)


def test_a_search_has_the_sizes_of_the_paper_and_depends_on_its_seed_alone():
    """64 sets first, then 16 mutations and 16 crossings in each iteration."""
    first = [(8.0,) * 6, (1.0, 1.5, 2.2, 3.4, 5.0, 8.0), (1.0, 1.0, 1.0, 4.0, 8.0, 8.0)]
    one, same, other = (evolve(first, math.fsum, 10.0, np.random.default_rng(seed), 3) for seed in (0, 0, 1))
    assert [*one] == [*same]
    assert [*one] != [*other]
    assert [*one][:3] == first
    assert len(one) == 64 + 3 * 32


def test_a_child_of_two_takes_what_lies_between_its_neighbours():
    """2.5 does not lie below 2, whose turn comes later; 2.6 lies between 1 and the most, 1.5 between 1 and 2."""
    rng = np.random.default_rng(0)
    assert {varied((1.0, 2.0), 3.0, rng, (2.5, 2.6)) for _ in range(200)} == {(1.0, 2.0), (1.0, 2.6)}
    crossed = {varied((1.0, 2.0), 3.0, rng, (1.5, 1.7)) for _ in range(200)}
    assert crossed == {(1.0, 2.0), (1.5, 2.0), (1.0, 1.7), (1.5, 1.7)}


run = runner(main, bar="longrope")
TESTS = ("--distances=40,110", "--tests=3", "--seed=4", "--digits=2")
SEARCH = ("--factor=2", "--iterations=2", *TESTS)


@pytest.fixture
def small(monkeypatch):
    """Searches of 12 sets, and 4 more in each iteration."""
    for name, size in {"POPULATION": 12, "PARENTS": 6, "CHILDREN": 2}.items():
        monkeypatch.setattr(f"eval.longrope.{name}", size)


@pytest.fixture(scope="module")
def four_pairs(prepared, tmp_path_factory):
    """A small run whose heads have four rotary pairs, so that NTK and YaRN differ."""
    return write_run(tmp_path_factory.mktemp("pairs") / "pairs", prepared, d_model=32)


def test_the_scores_are_those_of_eval_distance_under_the_file_it_writes(four_pairs, small, tmp_path, capsys):
    """Tests 0 to 2 of a distance score a set; tests 3 to 5 are fresh. A config takes the file too."""
    status, out, err = run([four_pairs, *SEARCH, "-o", tmp_path / "out", "--json"], capsys)
    assert (status, err) == (0, "")
    rows = {row["found_by"]: row for row in json.loads(out)["rows"]}
    assert rows["pi"]["long_factor"] == [2.0] * 4
    assert rows["ntk"]["long_factor"] == [1.0, 1.2599, 1.5874, 2.0]  # 2^(j / 3)
    best = max(rows.values(), key=lambda row: row["score"])
    assert rows["search"]["score"] == best["score"]
    assert rows["search"]["score"] > rows["pi"]["score"]
    (path,) = (tmp_path / "out").glob("longrope-*.yaml")
    written = path.read_text()
    given = parse_yaml((four_pairs / "config.yaml").read_text(), "config")
    del given["position"]
    (tmp_path / "extended.yaml").write_text(f"{format_yaml(given)}position:\n  {written}")
    found = load_experiment(tmp_path / "extended.yaml").position.frequency
    assert (found.method, found.factor, found.train_len, found.short_factor) == ("longrope", 2.0, 64, (1.0,) * 4)
    assert list(found.long_factor) == rows["search"]["long_factor"]
    for name in ("search", "ntk"):
        text = written.replace(json.dumps(found.long_factor), json.dumps(rows[name]["long_factor"]))
        words = ["--window=128", *TESTS, "--tests=6", f"--position={text}", "-o", str(tmp_path / name)]
        assert distance([str(four_pairs), *(word for word in words if word != "--tests=3")]) == 0
        (path,) = (tmp_path / name).glob("tests-*.jsonl")
        tests = [row for row in rows_in(path) if "test" in row]
        for field, part in (("score", range(3)), ("fresh", range(3, 6))):
            scores = [row["log_prob"] for row in tests if row["test"] in part]
            assert len(scores) == 6
            assert rows[name][field] == pytest.approx(math.fsum(scores) / 6, abs=2e-5)  # float32, rounded to 6 digits


def test_a_stopped_search_ends_as_one_that_was_not(four_pairs, small, tmp_path, capsys, monkeypatch):
    whole = run([four_pairs, *SEARCH, "-o", tmp_path / "whole"], capsys)
    scored, true = [], Subject.losses

    def losses(self, *given):
        scored.append(given)
        if len(scored) == 10:
            raise KeyboardInterrupt
        return true(self, *given)

    monkeypatch.setattr(Subject, "losses", losses)
    words = [four_pairs, *SEARCH, "-o", tmp_path / "out"]
    assert run(words, capsys) == (75, "", "stopped; the same command continues\n")
    again = run(words, capsys)
    assert again[1].splitlines()[:-1] == whole[1].splitlines()[:-1]
    (path,) = (tmp_path / "out").glob("tests-*.jsonl")
    sets = sum("score" in row for row in rows_in(path))
    assert len(scored) == sets + 1 + 4, "one was stopped, and four are scored on fresh tests"


@pytest.mark.slow
def test_a_model_of_transformers_is_searched_and_one_without_pairs_refused(foreign, small, text_file, capsys):
    words = ["--factor=1.1", "--iterations=1", "--points=2", "--tests=1", f"--haystack={text_file}"]
    words += ["-o", text_file.parent / "out", "--json"]
    model = foreign("gpt_neox")
    status, out, _ = run([model, *words], capsys)
    pairs = len(open_model(model).decoder.frequencies.inv_freq)
    assert (status, {len(row["long_factor"]) for row in json.loads(out)["rows"]}) == (0, {pairs})
    status, out, err = run([foreign("gpt2"), *words], capsys)
    assert (status, out, err.count("\n"), err[:22]) == (2, "", 1, "model=GPT2LMHeadModel:")
