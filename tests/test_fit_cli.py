"""The command line of lab.fit before anything is trained."""

import subprocess
import sys

import pytest
import torch

from lab.config import load_experiment
from tests.forked import LIMIT_S, ROOT, python
from tests.opened import sealed
from tests.refusals import check_faults

CONFIG = "configs/cpu_test.yaml"
WATCH = """
import runpy, sys
for words in {answers!r}:  # as `python -m` does, and says on stdout whether torch was loaded
    sys.argv = ['lab.fit', *words]
    try:
        runpy.run_module('lab.fit', run_name='__main__', alter_sys=True)
    except SystemExit as end:
        print(end.code, 'torch' in sys.modules)
"""


def fit(*words):
    return python("-m", "lab.fit", *words)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        pytest.param(["--optim.lr=1"], ["CONFIG: must be the first argument, a YAML file; "], id="no_config"),
        pytest.param(["nowhere.yaml"], ["nowhere.yaml: cannot be read ("], id="missing_file"),
        pytest.param(
            [CONFIG, "--optim.lr=-1", "--run.name=a/b"],
            ["run.name=a/b: must be a plain folder name of at most 200 bytes; ", "optim.lr=-1: must be > 0"],
            id="two_faults",
        ),
        pytest.param(
            [CONFIG, "--resume", "--restart", "--print_config"],
            ["--restart: contradicts --print_config; ", "--resume: contradicts --print_config; "],
            id="flags",
        ),
    ],
)
def test_a_mistake_is_status_2_and_a_line_each(words, lines):
    done = fit(*words)
    assert (done.returncode, done.stdout) == (2, "")
    check_faults(done.stderr.splitlines(), lines)


def test_torch_is_not_loaded_for_an_answer():
    answers = {  # words, and their exit status
        (CONFIG, "--optim.l=1"): "2",
        (CONFIG, "--memory_gib=8"): "2",
        (CONFIG, "--print_config"): "0",
        ("--help=all",): "0",
    }
    words = [sys.executable, "-W", "ignore", "-c", WATCH.format(answers=[*answers])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    told = [line.split() for line in done.stdout.splitlines() if line.endswith((" False", " True"))]
    assert told == [[status, "False"] for status in answers.values()], done.stderr


REFUSED = {  # what the run folder's place and settings are, and the line
    "run_exists": ((), "run.name=there: "),
    "changed": (("--resume", "--optim.beta2=0.9"), "optim.beta2=0.9: the run was started with "),
    "a_file": (("--run.folder={place}/file",), "run.folder={place}/file: "),
    "unprepared": (
        ("--run.name=new", "--data.corpus={{name: slimpajama}}"),
        "data.corpus.name=slimpajama: not prepared in {place}/shards/slimpajama-",
    ),
    "haystack": (
        ("--run.name=new", "--probe.haystack={place}/none.json"),
        "probe.haystack={place}/none.json: ",
    ),
    "no_gpu": (("--run.name=new", "--train.accelerator=gpu"), "train.accelerator=gpu: "),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_refusal_does_not_wait_for_lightning(tmp_path):
    (tmp_path / "runs" / "there").mkdir(parents=True)
    (tmp_path / "runs" / "there" / "config.yaml").write_text(load_experiment(ROOT / CONFIG).to_yaml())
    (tmp_path / "runs" / "there" / "metrics.jsonl").write_text("")
    sealed(tmp_path / "runs" / "there")
    (tmp_path / "file").write_text("")
    places = (f"--run.folder={tmp_path / 'runs'}", "--run.name=there", f"--data.folder={tmp_path / 'shards'}")
    answers = []
    for options, _ in REFUSED.values():
        own = [word.format(place=tmp_path) for word in options]
        given = {word.split("=")[0] for word in own}
        answers.append([CONFIG, *(word for word in places if word.split("=")[0] not in given), *own])
    code = WATCH.format(answers=answers).replace("'torch' in", "'lightning' in")
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stdout.split() == ["2", "False"] * len(REFUSED), done.stderr
    check_faults(done.stderr.splitlines(), [start.format(place=tmp_path) for _, start in REFUSED.values()])
    assert not (tmp_path / "runs" / "new").exists()
