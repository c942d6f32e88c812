"""Weights & Biases may be missing, refuse, stall or die: the run completes, with one line about it."""

import json
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import DEFAULT, Mock

import pytest

from lab.config import load_experiment
from lab.train.record import Wandb
from tests.fits import CONFIG, UNPROBED, command, exact_metrics, records, train
from tests.forked import python
from tests.launching import environment, patched

wandb = pytest.importorskip("wandb")
STEPS = 6
SHORT = (*UNPROBED, f"--train.tokens={1024 * STEPS}")
PATIENCE = "import lab.train.record as d; d.CONNECT_S = d.FINISH_S = 2.0"
KILL = """
import psutil
from lab.train.record import Recording
own = Recording.write_line
def killing(self, state, stats):
    if state.step == 3:
        for process in psutil.Process().children(recursive=True):
            process.kill()
    return own(self, state, stats)
Recording.write_line = killing
"""
BUCKET = {"id": "b", "name": "run", "displayName": "run", "config": "{}", "historyLineCount": 0, "sweepName": None}
BUCKET["project"] = {"id": "p", "name": "probe-lab", "entity": {"id": "e", "name": "me"}}
ANSWER = {  # what wandb 0.31 asks for, all of it at once, as it reads only the fields of its question
    "viewer": {"id": "v", "entity": "me", "username": "me", "teams": {"edges": []}, "flags": "{}", "email": "x"},
    "serverInfo": {"features": []},
    "model": {"bucket": None},
    "project": {"run": {"stopped": False}},
    "createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []},
}


@contextmanager
def server(kind):
    """Listen as a stand-in for the service: it stalls, knows no key, or is lost after the first lines."""
    released, requests = threading.Event(), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            begun = any(path.endswith("file_stream") for path in requests)
            requests.append(self.path)
            if kind == "stalled":
                released.wait()
            if kind == "lost" and begun:
                return self.connection.close()
            self.send_response(401 if kind == "unauthorized" else 200)
            self.end_headers()
            answer = {}
            if self.path == "/graphql":
                name = (json.loads(body).get("variables") or {}).get("name")
                answer = {"data": ANSWER | {"upsertBucket": {"bucket": {**BUCKET, "name": name}, "inserted": True}}}
            self.wfile.write(json.dumps(answer).encode())
            return None

        do_GET = do_PUT = do_POST

        def log_message(self, *arguments):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield listening.server_port
    finally:
        released.set()
        listening.shutdown()
        listening.server_close()


def mirrored(place, kind, code=PATIENCE, mode="online", **variables):
    """Train against a stand-in; return the run folder and the lines about the dashboard."""
    with server(kind) as port:
        own = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "HOME": str(place), "NETRC": str(place / "none")}
        words = patched(command(place, kind, *SHORT, f"--track.wandb={mode}"), code)
        done = python(*words[1:], env=environment(**own, WANDB_API_KEY="a" * 40, **variables))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert [record["step"] for record in records(place / "runs" / kind)] == [*range(1, STEPS + 1)]
    return place / "runs" / kind, re.findall(r"track\.wandb[:=].*", done.stderr)


@pytest.mark.parametrize("kind", ["stalled", pytest.param("unauthorized", marks=pytest.mark.slow)])
def test_without_a_connection_the_run_is_recorded_offline(tmp_path, kind):
    wandb.setup()  # as the agent of a sweep
    run, (line,) = mirrored(tmp_path, kind, WANDB_SERVICE=os.environ["WANDB_SERVICE"])
    wandb.teardown()
    (offline,) = run.glob("wandb/offline-run-*")
    assert line.startswith("track.wandb=online: ")
    assert line.endswith(f" wandb sync {offline}")
    assert list(offline.glob("*.wandb"))


@pytest.mark.parametrize("chosen", [None, pytest.param("chosen", marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_a_network_lost_in_mid_run_costs_a_line(tmp_path):
    run, (line,) = mirrored(tmp_path, "lost")
    (place,) = run.glob("wandb/run-*")
    assert line.endswith(f" wandb sync --include-online {place}")


@pytest.mark.slow
def test_the_death_of_wandbs_process_is_one_line(tmp_path):
    _, (line,) = mirrored(tmp_path, "stalled", PATIENCE + KILL, mode="offline")
    assert line.startswith("track.wandb: ")


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
