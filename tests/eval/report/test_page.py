"""The page of runs in a browser, Debian's Chromium, which .ci/run installs: every figure, at two widths."""

import json
import re
import shutil
import subprocess

import pytest

from eval.report.__main__ import main
from tests.eval.report.fakes import evaluate, one, write_fake
from tests.forked import ROOT

LIMIT_S = 120
RECORDS = sorted((ROOT / "experiments/miniature/records").glob("*.xz"))  # 27 runs
CHROMIUM = (
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--dump-dom"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=4000"),
)
WATCH = """<script>
const faults = [], watch = (kind, read) => addEventListener(kind, event => faults.push(String(read(event))));
watch("error", event => event.message);
watch("unhandledrejection", event => event.reason);
console.error = (...words) => faults.push(words.join(" "));
addEventListener("load", () => setTimeout(() => {
  for (const box of document.querySelectorAll(".chart"))
    if (box.scrollWidth > box.clientWidth) faults.push(`${box.id} is wider than the page`);
  document.body.dataset.faults = faults.join("; ");
}, 3000));
</script>
<style>body { width: WIDTHpx; box-sizing: border-box; }</style>"""  # as no window of Chromium is below 500 pixels
MARK = re.compile(r'<path [^>]*aria-roledescription="(line|point|bar|rect|area|rule)[^>]* d="M[^>]*>')


def make_runs(place, n_arms):
    for window in range(128, 128 + n_arms):
        path = write_fake(place / f"run-{window}", window=window, reaches=(40.0 + window / 9, 90.0))
        rows = [{"step": k, "consumed_tokens": 1000 * k, "loss": 3 + window / 1000 - k / 100} for k in range(1, 100)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        evaluate(path, [one(20, 0.9) | {"method": "rope+dca"}, one(100, 0.5) | {"method": "rope+dca"}])
        yield path


def browse(page):
    """Open a page, and return its elements after the scripts have run."""
    words = [*CHROMIUM, f"--user-data-dir={page.parent / 'profile'}", "--window-size=1100,2000", page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


CASES = ["records", *(pytest.param(name, marks=pytest.mark.slow) for name in ("one", "many", "long"))]


@pytest.mark.parametrize("name", CASES)
def test_every_figure_has_marks_and_no_two_arms_share_a_style(tmp_path, capsys, monkeypatch, name):
    pytest.importorskip("altair")
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium: apt-get install chromium")
    if name == "long":
        phrase = "a window that has a name much longer than any line of a narrow page, of {}"
        monkeypatch.setattr("lab.analysis.conditions.PHRASES", {"data.window": phrase})
    n_arms = {"one": 1, "many": 70, "records": 9, "long": 3}[name]
    paths = RECORDS if name == "records" else make_runs(tmp_path, n_arms)
    page = tmp_path / "report.html"
    assert main([*map(str, paths), "-o", str(page)]) == 0, capsys.readouterr().err
    text = page.read_text()
    titles = re.findall(r"<figure><h2>([^<]*)", text)
    for width, checked in ((1100, ""), (420, ""), (1100, " checked")):  # logarithmic axes where checked
        watched = text.replace("<head>", f"<head>{WATCH.replace('WIDTH', str(width))}", 1)
        page.write_text(re.sub(r'(data-figure="\d+")[^>]*>', rf"\1{checked}>", watched))
        found = browse(page)
        assert re.search(r'<body[^>]* data-faults="([^"]*)"', found)[1] == "", (width, checked)
        for title, part in zip(titles, found.split('id="figure-')[1:], strict=True):
            marks = [mark[0] for mark in MARK.finditer(part)]
            assert marks, title
            lines = {tuple(re.findall(r' stroke(?:-dasharray)?="([^"]*)"', mark)) for mark in marks if "line" in mark}
            if title in ("Loss", "Position frequency and demand"):  # in which each arm is a line
                styles = min(n_arms, 40), min(n_arms, 8)  # eight colours and five dashes in turn
                assert (len(lines), len({color for color, *_ in lines})) == styles, title
