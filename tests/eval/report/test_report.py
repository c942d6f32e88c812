"""eval.report: frames and pages of hand-made run folders."""

import json
import re

import pytest
from PIL import Image

from eval.report.__main__ import main
from eval.report.frames import fold_runs, read_runs
from lab.results.statistics import SHARES
from lab.runs.folder import RunFolder
from tests.eval.commands import check_faults, runner
from tests.eval.report.fakes import PLAIN, evaluate, one, write_fake

run = runner(main, "figures")


@pytest.fixture
def two_arms(tmp_path):
    """Windows 128, with seeds 0 to 2, and 192, with one."""
    paths = [write_fake(tmp_path / f"a{k}", seed=k, reaches=(40.0, 80.0 + 10 * k)) for k in range(3)]
    paths.append(write_fake(tmp_path / "b", window=192, reaches=(None, 150.0), last=170))
    string = {"method": "rope+string(shift=64,window=32)"}
    four = {"metric": "needles_by_distance", "distance": 20, "score": 0.1, "n": 4, **PLAIN}
    reach = {"metric": "reach", "reach": 170.0, "n": 100, "dips": [20, 31], **string}
    evaluate(paths[3], [one(20, 0.9, n=400) | PLAIN, one(20, 0.7) | string, four, reach])
    evaluate(paths[3], [one(20, 0.0) | PLAIN], tokens=1_000_000)
    RunFolder(paths[3] / "eval").write_records("tests-000000002000000-0a.jsonl", [{"key": {}}, {"distance": 20}])
    return paths


def test_frames_hold_arms_probes_and_the_evaluations_of_the_last_probe(two_arms):
    runs = read_runs(two_arms)
    assert list(runs.runs["condition"]) == ["window of 128, n = 3"] * 3 + ["b"]
    assert list(runs.runs["reach"]) == [80, 90, 100, 150]
    assert list(runs.probes["consumed_tokens"]) == [1_000_000, 2_000_000] * 4
    assert runs.methods == ["plain", "string(shift=64,window=32)"]
    b = runs.distances[runs.distances["run"] == "b"]
    found = {(row.method, row.distance): row.score for row in b.itertuples()}
    assert found == {("plain", 20): 0.9, ("plain", 170): 0.4, ("string(shift=64,window=32)", 20): 0.7}
    assert list(runs.reaches["reach"]) == [80, 90, 100, 150, 170]


def test_seeds_are_folded_with_t_limits_and_one_run_keeps_those_of_its_tests(tmp_path):
    for k, score in enumerate((0.7, 0.8, 0.9)):
        write_fake(tmp_path / f"a{k}", seed=k, scores=(1.0, score))
    write_fake(tmp_path / "b", window=192, scores=(1.0, 0.4))
    rows = read_runs(sorted(tmp_path.iterdir())).distances
    out = fold_runs(rows, ["condition", "method", "distance"], ends=SHARES).set_index(["condition", "distance"])
    far = out.loc[("window of 128, n = 3", 100)]
    # mean .8; with 0 and 1: mean .68, s .3962, half width 2.7764 * .3962 / sqrt(5) = .4920
    assert [far["mean"], far["low"], far["high"]] == pytest.approx([0.8, 0.18801, 1.0], abs=1e-4)
    assert far["count"] == 3
    equal = out.loc[("window of 128, n = 3", 20)]  # 1 of all seeds
    assert equal["low"] == pytest.approx(0.8 - 2.7764 * 0.2, abs=1e-4)
    assert list(out.loc[("b", 100), ["low", "high"]]) == pytest.approx([0.3, 0.5])


def test_page_is_whole_and_escaped_and_its_figures_are_valid(two_arms, tmp_path, capsys):
    pytest.importorskip("altair")
    evil = two_arms[0].rename(two_arms[0].with_name("<b>bold<"))
    page = tmp_path / "out" / "report.html"
    status, out, err = run([evil, *two_arms[1:], "-o", page], capsys)
    assert (status, err.strip()) == (0, "")
    assert out.startswith("4 runs, 4 figures, ")
    assert out.count(str(page)) == 1
    text = page.read_text()
    specs = json.loads(re.search(r"const figures = (.*);\n", text)[1])
    assert len(specs) == 4
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""\b(src|href)\s*=|url\(|@import|<script|<link""", markup)
    assert "<b>bold" not in text
    assert "&lt;b&gt;bold" in text
    assert run([*two_arms[1:], "-o", tmp_path / "all.png"], capsys)[0] == 0
    assert Image.open(tmp_path / "all.png").width > 1500


def test_a_report_replaces_its_own_page_and_no_other(two_arms, tmp_path, capsys):
    page, index = tmp_path / "report.html", tmp_path / "index.html"
    index.write_text("<p>mine</p>")
    assert run([two_arms[0], "-o", page], capsys)[0] == 0
    assert run([*two_arms[:2], "-o", page], capsys)[0] == 0  # a sweep that has grown
    before = index.read_bytes()
    status, _, err = run([two_arms[0], "-o", index], capsys)
    assert (status, err.startswith(f"-o={index}: is no report;"), index.read_bytes()) == (2, True, before), err


def test_faults_are_one_line_each(tmp_path, capsys):
    def check(words, start):
        status, _, err = run(words, capsys)
        assert status == 2
        check_faults(err.splitlines(), [start])

    good, other = write_fake(tmp_path / "a"), write_fake(tmp_path / "more" / "a")
    place = good / "config.yaml" / "x.html"
    check([tmp_path / "none"], f"{tmp_path / 'none'}: no such folder")
    check([good, other], "a: must be the name of one folder only")
    check([good, "-o", place], f"-o {place}: cannot be written")
    for text in ("{\n", "3\n", "{}\n", '{"consumed_tokens": null}\n', "\udcff\n"):
        (other / "probes.jsonl").write_text(text, errors="surrogateescape")
        check([other], f"{other / 'probes.jsonl'}: ")
