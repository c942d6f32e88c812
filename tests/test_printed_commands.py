"""Every command that README, Makefile, pages and helps print: run on the demo, or read to its last argument."""

import argparse
import contextlib
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from eval.engine import command as engine
from lab.cli import commands
from lab.config import load_experiment
from lab.counts import PositionCounts
from lab.data.module import PackedData
from lab.data.preparation import prepare
from lab.runs.folder import RunFolder
from lab.train.starting import Start, start_folder
from tests.forked import ROOT
from tests.opened import CONSUMED, adopted, write_run

PLACES = ("README.md", "CONTRIBUTING.md", "Makefile", "docs/*.md", "benchmarks/*.md", "sweeps/*.yaml")
HELPS = ("lab/*.py", "lab/*/__main__.py", "eval/*.py", "eval/*/__main__.py", "benchmarks/*.py", "experiments/**/*.py")
PAGES = [path for place in (*PLACES, *HELPS, "tests/torture/__main__.py") for path in sorted(ROOT.glob(place))]
PROGRAM = r"(?:\.venv/bin/)?(?:probe-lab(?= [a-z])|python -m(?= [a-z])|make(?= [a-z]+\b(?! =)))"
PRINTED = re.compile(rf"(?:^\s*|[`$'] *|srun |timeout \d+ ){PROGRAM} (?:[^`|\n\\{{]|\\+\n)+", re.M)
MODULES = {name: module for name, (module, _) in commands().items()}
FORMER = ("probe-lab ruler", "probe-lab positions string --shift 3")
FEWER = {"perplexity": "--lengths=32", "impact": "--windows=2"}  # on the few documents that are prepared here
FEWER |= dict.fromkeys(("probe", "distance", "passkey"), "--tests=2")
ON_DEMO = re.compile(
    r"probe-lab (?!report|fit|export|verify|sweep)[a-z]+ .*runs/cpu_demo\b|positions [a-z_]+ --|frequency --positions"
    r"|(compare|reach|report) experiments/"
)
# test_first_hour.py, test_plugins.py and test_trackers.py run these
OF_A_PAGE = re.compile(r"\bown|mymodel|first\.yaml|steps\.py|partial_pi\.py")
REASONS = {  # why the others go as far as their arguments: the first that matches
    "it changes the repository, or runs this test": r"^make|docs|pytest|pictures|torture",
    "a network or a cluster": r"hf:|harness|SLURM|--task|launcher",
    "a GPU, or minutes of measuring": r"benchmarks\.|--profile",
    "minutes of training": r" fit |lab\.fit|sweep|longrecipe|prepare|experiments\.|papers|minis| shape | demand ",
    "a trained run": r"(report|export|verify|eval\.distance) runs/cpu_demo|compare (pythia|series)",
    "a model of others, or days of training": r"models/|\b[A-Z]{3}|tiny_2k|runs/(?!cpu_demo )|shards|elsewhere",
    "text of the reader, or more memory": r"frequency|positions|--help",
}
MEANT = {
    "CONFIG": "configs/cpu_demo.yaml",
    "$SLURM_ARRAY_TASK_ID": "0",
    "extend_abf.yaml": "extend_abf.yaml --start.path=runs/cpu_demo",
}
MEANT |= dict(re.findall(r"(LLAMA_\w+)(?: write)?\n\n```\n(.*)\n", (ROOT / "docs/scale.md").read_text()))
OF_OTHERS = {  # which need the settings of a model that is not here
    "probe-lab fit configs/anchor_128k_upsampled.yaml": " --dry_run LLAMA_2_7B",
    "probe-lab prepare configs/anchor_128k_upsampled.yaml --workers 32": " LLAMA_2_7B",
}
STOPS = {  # what a command calls once it has read its arguments
    "prepare": ["prepare"],
    "sweep": ["train_runs"],
    "longrecipe": ["resolve_recipe"],
    "generate": ["open_model"],
    "merge": ["find_place"],
    "export": ["find_place"],
    "verify": ["list_checks"],
    "pictures": ["plot_picture"],
    "eval.papers.minis": ["names"],
    "papers": ["run_table", "describe_plan", "list_tables"],
}


class Reached(BaseException):
    """The end of the arguments."""


def stop(*_, **__):
    raise Reached


def printed():
    """Collect the commands of all pages, without what stands behind them in a column of its own."""
    found = [text for page in PAGES for text in PRINTED.findall(page.read_text(encoding="utf-8"))]
    texts = set()
    for text in found:
        joined = re.sub(r"\\+\n\s*", "", text).strip(" \n`$").lstrip("'")
        alone = re.split(r"\s{2,}(?!-)|,? \(|, then| # | > ", joined)[0]
        command = re.sub(r"^(srun|timeout \d+) |\.venv/bin/", "", " ".join(alone.split())).removesuffix(".")
        texts.add(command.removesuffix("'") if command.count("'") % 2 else command)
    others = re.compile(r" \[|\.\.\.|<|[a-z] the |\.X|^[a-z-]+ (-m )?[\w.]+ \w+ \w+ ")  # usage lines and sentences
    return sorted(text for text in texts if not others.search(text) and not OF_A_PAGE.search(text))


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
        for name in ("configs", "experiments", "sweeps", "docs", "Makefile"):
            Path(name).symlink_to(ROOT / name)
        Path("essays.txt").write_text(" ".join(f"word {n * n % 97}." for n in range(3000)))
    return place


def test_pages_print_commands_that_run_or_have_a_reason():
    texts = printed()
    assert len(texts) > 200
    others = [text for text in texts if not ON_DEMO.search(text)]
    assert len(texts) - len(others) > 35
    explained = re.compile("|".join([*REASONS.values(), r"^probe-lab [a-z]+$"]))
    assert [text for text in others if not explained.search(text)] == []


def split(text):
    """Return the command, its module, and its arguments, with values for what a page leaves to the reader."""
    text = re.sub(r"tokens-\d{15}", f"tokens-{CONSUMED:015d}", text + OF_OTHERS.get(text, ""))
    for name, value in MEANT.items():
        text = text.replace(name, value)
    program, *words = shlex.split(text)
    if text in ("probe-lab docs", "probe-lab help"):
        return "docs", None, []
    if program == "make":
        return words[0], None, words
    if program == "python":
        return words[1].partition(".")[2], words[1], words[2:]
    return words[0], commands()[words[0]][0], words[1:]


def import_main(module):
    package = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
    return importlib.import_module(package)


SLOW = {text for text in printed() if ON_DEMO.search(text) and not text.startswith(FORMER)}  # but what once failed


@pytest.mark.parametrize("text", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in printed()])
def test_a_printed_command_runs_or_takes_its_arguments(place, monkeypatch, capsys, text):
    monkeypatch.chdir(place)
    name, module, words = split(text)
    if name == "docs" or module == "sphinx":  # tests/test_pages.py compares the settings, make test builds the site
        return
    if module is None:
        assert subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, check=False).returncode == 0
    elif module == "pytest":
        assert [word for word in words if "/" in word and not (ROOT / word).exists()] == []
    elif ON_DEMO.search(text):
        words = [re.sub(r"^--(tests|texts|documents|windows)=\d+$", r"--\1=2", word) for word in words]
        words += {FEWER.get(name)} - {None, *words}
        assert run(module, words, monkeypatch) == 0, capsys.readouterr().err
    elif name == "fit":
        assert import_main(module).read_arguments(words or ["--help"]) == 0, capsys.readouterr().err
    elif words or module not in MODULES.values():
        found = import_main(module)
        for stopped in STOPS.get(name, ()):
            monkeypatch.setattr(found, stopped, stop)
        read = engine.read_requests
        monkeypatch.setattr(engine, "read_requests", lambda args, spec, read=read: stop(*read(args, spec)))
        monkeypatch.setattr(engine, "expand", lambda words, takes: [Path("runs/cpu_demo")])
        read = argparse.ArgumentParser.parse_args
        if "lab." not in module and "eval" not in module:
            monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda self: stop(read(self)))
        status = 0
        with contextlib.suppress(Reached):
            status = run(module, words, monkeypatch)
        assert status == 0, capsys.readouterr().err


def run(module, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [module, *words])
    main = import_main(module).main
    try:
        return main(words) if inspect.signature(main).parameters else main() or 0
    except SystemExit as end:
        return end.code or 0
