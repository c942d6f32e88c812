"""Weights & Biases may be missing, refuse, stall or die: the run completes, with one line about it."""

import re
import socket
import sys
import threading
import time
from unittest.mock import DEFAULT, Mock

import pytest

from lab.config import load_experiment
from lab.train.record import Wandb
from tests.fits import CONFIG, UNPROBED, command, exact_metrics, records, train
from tests.forked import python
from tests.launching import environment, patched

pytest.importorskip("wandb")
STEPS = 6
SHORT = (*UNPROBED, f"--train.tokens={1024 * STEPS}")
PATIENCE = "import lab.train.record as d; d.CONNECT_S = d.FINISH_S = 2.0"


def test_without_an_answer_the_run_is_recorded_offline(tmp_path):
    run = tmp_path / "runs" / "stalled"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        own = {"WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "WANDB_API_KEY": "a" * 40}
        own |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
        words = patched(command(tmp_path, run.name, *SHORT, "--track.wandb=online"), PATIENCE)
        done = python(*words[1:], env=environment(**own))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert [record["step"] for record in records(run)] == [*range(1, STEPS + 1)]
    (offline,) = run.glob("wandb/offline-run-*")
    (line,) = re.findall(r"track\.wandb[:=].*", done.stderr)
    assert line.startswith("track.wandb=online: ")
    assert line.endswith(f" wandb sync {offline}")
    assert list(offline.glob("*.wandb"))


@pytest.mark.parametrize("chosen", [None, "chosen"])
def test_a_run_that_was_stopped_twice_is_one_run_there(tmp_path, monkeypatch, chosen):
    settings = {"run.folder": str(tmp_path), "run.name": "stopped", "track.wandb": "offline"}
    experiment = load_experiment(CONFIG, settings)
    experiment.run.path.mkdir()
    if chosen:
        monkeypatch.setenv("WANDB_RUN_ID", chosen)
    for step in range(3):
        dashboard = Wandb(experiment)
        dashboard.mirror({"consumed_tokens": step, "loss": 1.0})
        dashboard.close(finished=step == 2)
        assert not dashboard.broken
        time.sleep(1)  # wandb names folders by the second
    files = [*experiment.run.path.glob("wandb/offline-run-*/run-*.wandb")]
    names = {file.stem for file in files}
    assert (len(files), len(names)) == (3, 1)
    assert chosen is None or names == {f"run-{chosen}"}


def fail(*status):
    """Fail, as wandb.teardown does where wandb's own process has failed: by ending this one."""
    raise (SystemExit if status == (0,) else RuntimeError)("planted\nin two lines")


def hang(*_, **__):
    threading.Event().wait(600)


GONE_ON = "the run folder holds all"
FAULTS = {  # what wandb does where, and the end of the line
    "missing": ("import", fail, GONE_ON),
    "init": ("init", fail, GONE_ON),
    "refused": ("init", [ValueError("no such key"), DEFAULT], "send it with: wandb sync x"),
    "log": ("log", fail, GONE_ON),
    "hanging": ("log", hang, GONE_ON),
    "teardown": ("teardown", fail, GONE_ON),
    "unsent": ("teardown", None, "send it with: wandb sync --include-online x"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_training_goes_on_whatever_wandb_does(tmp_path, monkeypatch, capsys, name):
    call, does, ending = FAULTS[name]
    short = (*UNPROBED, "--train.tokens=3072", "--optim.warmup_steps=1")
    whole = exact_metrics(train(tmp_path, "untracked", *short))
    run = Mock(disabled=False, dir="x/y")
    stand_in = Mock(init=Mock(return_value=run))
    getattr(run if call == "log" else stand_in, call).side_effect = does
    monkeypatch.setitem(sys.modules, "wandb", None if call == "import" else stand_in)
    monkeypatch.setattr("lab.train.record.LIMIT_S", 1.0 if name == "hanging" else 120.0)
    monkeypatch.setattr("lab.train.record.FINISH_S", 0.0 if name == "unsent" else 120.0)
    assert exact_metrics(train(tmp_path, "tracked", *short, "--track.wandb=offline")) == whole
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "track." in line]
    assert line.endswith(ending)
