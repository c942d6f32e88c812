import subprocess
import sys

import pytest
import torch

from lab.config import load_experiment
from tests.forked import LIMIT_S, ROOT
from tests.opened import sealed
from tests.refusals import check_faults

CONFIG = "configs/cpu_test.yaml"
WATCH = """
import runpy, sys
for words in {answers!r}:  # as `python -m` does, and says on stdout whether a package was loaded
    sys.argv = ['lab.fit', *words]
    try:
        runpy.run_module('lab.fit', run_name='__main__', alter_sys=True)
    except SystemExit as end:
        print(end.code, {package!r} in sys.modules)
"""
MISTAKES = {  # words, and the lines
    "--optim.lr=1": ["CONFIG: must be the first argument, a YAML file; "],
    "nowhere.yaml": ["nowhere.yaml: cannot be "],
    f"{CONFIG} --optim.l=1": ["optim.l=1: "],
    f"{CONFIG} --memory_gib=8": ["--memory_gib=8: "],
    f"{CONFIG} --optim.lr=-1 --run.name=a/b": ["run.name=a/b: must be a plain folder ", "optim.lr=-1: must be > 0"],
    f"{CONFIG} --resume --print_config": ["--resume: contradicts --print_config; "],
    f"{CONFIG} --restart --print_config": ["--restart: contradicts --print_config; "],
}
REFUSED = {  # settings, and the line
    "": "run.name=there: ",
    "--resume --optim.beta2=0.9": "optim.beta2=0.9: the run was started with ",
    "--run.name=new --data.corpus.name=slimpajama": "data.corpus.name=slimpajama: not prepared in {}/shards/",
    "--run.name=new --probe.haystack={}/none.json": "probe.haystack={}/none.json: ",
    "--run.name=new --train.accelerator=gpu": "train.accelerator=gpu: ",
}


def check_answers(package, answers, statuses, faults):
    """Give command lines one after the other: none loads the package, and mistakes print their faults alone."""
    words = [sys.executable, "-W", "ignore", "-c", WATCH.format(answers=answers, package=package)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    told = [line for line in done.stdout.splitlines() if line.endswith((" False", " True"))]
    assert told == [f"{status} False" for status in statuses], done.stderr
    n_mistakes = statuses.count(2)
    assert done.stdout.splitlines()[:n_mistakes] == told[:n_mistakes]
    check_faults(done.stderr.splitlines(), faults)


def test_torch_is_not_loaded_for_an_answer():
    answers = [words.split() for words in (*MISTAKES, f"{CONFIG} --print_config", "--help=all")]
    faults = [line for lines in MISTAKES.values() for line in lines]
    check_answers("torch", answers, [2] * len(MISTAKES) + [0, 0], faults)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_refusal_does_not_wait_for_lightning(tmp_path):
    there = tmp_path / "runs" / "there"
    there.mkdir(parents=True)
    (there / "config.yaml").write_text(load_experiment(ROOT / CONFIG).to_yaml())
    (there / "metrics.jsonl").write_text("")
    sealed(there)
    places = [f"--run.folder={tmp_path / 'runs'}", f"--data.folder={tmp_path / 'shards'}"]
    answers = []
    for options in REFUSED:
        name = [] if "run.name" in options else ["--run.name=there"]
        answers.append([CONFIG, *places, *name, *options.format(tmp_path).split()])
    check_answers("lightning", answers, [2] * len(REFUSED), [line.format(tmp_path) for line in REFUSED.values()])
    assert not (tmp_path / "runs" / "new").exists()
