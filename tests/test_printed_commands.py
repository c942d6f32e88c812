"""Every command on runs/cpu_demo, or on no run, that a page or a help prints is run as printed, with fewer tests."""

import importlib
import re
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from lab.cli import commands
from lab.config import load_experiment
from lab.counts import PositionCounts
from lab.data.module import PackedData
from lab.data.preparation import prepare
from lab.runs.folder import RunFolder
from lab.train.starting import Start, start_folder
from tests.forked import ROOT
from tests.opened import CONSUMED, adopted, write_run

PLACES = ("README.md", "docs/*.md", "eval/*.py", "eval/*/__main__.py", "lab/*.py")
PAGES = [path for place in PLACES for path in ROOT.glob(place)]
MODULES = {name: module for name, (module, _) in commands().items() if module.startswith("eval.")}
PRINTED = re.compile(rf"probe-lab (?:{'|'.join(MODULES)})\b(?:[^`|\n\\]|\\+\n)+")
FORMER = ("answer_budget",)  # once failed; the others are slow together
FEWER = {"perplexity": "--lengths=32", "impact": "--windows=2"}  # on the few documents that are prepared here
FEWER |= dict.fromkeys(("probe", "distance", "passkey"), "--tests=2")


def printed():
    """Collect the commands of all pages, without what stands behind them in a column of its own."""
    found = [text for page in PAGES for text in PRINTED.findall(page.read_text(encoding="utf-8"))]
    joined = [re.sub(r"\\+\n\s*", "", text) for text in found]
    alone = [" ".join(re.split(r"\s{2,}(?!-)|,? \(|, then", text)[0].split()).removesuffix(".") for text in joined]
    chosen = re.compile(r"(?<!report )runs/cpu_demo|positions [a-z_]+ --|frequency --")  # a report needs a trained run
    return sorted(text for text in set(alone) if chosen.search(text) and " ... " not in text)


def marked(text):
    """Leave all but what once failed to the slow tests."""
    return text if any(word in text for word in FORMER) else pytest.param(text, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with runs/cpu_demo, the demo's settings and untrained weights, and the files that commands name."""
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        experiment = load_experiment(ROOT / "configs" / "cpu_demo.yaml", {"data.corpus.documents": 4000})
        prepare(experiment.data, progress=False)
        folder = write_run(Path("runs/cpu_demo"), experiment.data, **asdict(experiment.model))
        start_folder(Start(experiment), PackedData(experiment), threads=1)
        adopted(folder)
        counts = PositionCounts(192)
        counts.add_segments([192, 60])
        RunFolder(folder).write_counts(counts)
        write_run(Path("runs/tuned"), experiment.data, std=0.3, **asdict(experiment.model))
        Path("configs").symlink_to(ROOT / "configs")
        Path("essays.txt").write_text(" ".join(f"word {n * n % 97}." for n in range(3000)))
    return place


def test_pages_print_commands():
    assert len(printed()) > 20


@pytest.mark.parametrize("text", [marked(text) for text in printed()])
def test_a_printed_command_runs(place, monkeypatch, capsys, text):
    monkeypatch.chdir(place)
    _, name, *words = shlex.split(re.sub(r"tokens-\d{15}", f"tokens-{CONSUMED:015d}", text))
    words = [re.sub(r"^--(tests|texts|documents|windows)=\d+$", r"--\1=2", word) for word in words]
    words += {FEWER.get(name)} - {None, *words}
    module = MODULES[name]
    package = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
    assert importlib.import_module(package).main(words) == 0, capsys.readouterr().err
