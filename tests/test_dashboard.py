"""Weights & Biases may be missing, refuse, stall or die: the run completes, with one line about it."""

import json
import re
import socket
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from lab.train.callbacks.dashboard import Dashboard
from tests.fits import UNPROBED, command, records
from tests.forked import python
from tests.launching import environment, patched

pytest.importorskip("wandb")
STEPS = 6
SHORT = (*UNPROBED, f"--train.tokens={1024 * STEPS}")
PATIENCE = "import lab.train.callbacks.dashboard as d; d.CONNECT_S = d.FINISH_S = 2.0"
KILL = """
import psutil
from lab.train.callbacks.recording import Recording
own = Recording.write_line
def killing(self, trainer, module):
    if trainer.global_step == 3:
        for process in psutil.Process().children(recursive=True):
            process.kill()
    return own(self, trainer, module)
Recording.write_line = killing
"""
PROJECT = {"id": "p", "name": "probe-lab", "entity": {"id": "e", "name": "me"}}
BUCKET = {"id": "b", "name": "run", "displayName": "run", "config": "{}", "historyLineCount": 0, "project": PROJECT}
ANSWER = {"data": {"model": {"bucket": None}, "upsertBucket": {"bucket": BUCKET, "inserted": True}}}


STREAM = "file_stream"


def whole(variables):
    """Answer what wandb 0.31 asks for: all of it at once, as it reads only the fields of its question."""
    return {
        "viewer": {"id": "v", "entity": "me", "username": "me", "teams": {"edges": []}, "flags": "{}", "email": "x"},
        "serverInfo": {"features": []},
        "upsertBucket": {"bucket": {**BUCKET, "name": (variables or {}).get("name"), "sweepName": None}},
        "model": {"bucket": None},
        "project": {"run": {"stopped": False}},
        "createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []},
    }


@contextmanager
def server(kind):
    """Listen as a stand-in for the service.

    It refuses, stalls, knows no key, lacks fields in its answers, is whole, or is lost or stalls after the first lines.
    """
    released, requests, bodies = threading.Event(), [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            begun = any(path.endswith(STREAM) for path in requests)
            requests.append(self.path)
            bodies.append(body)
            if kind == "stalled" or (kind == "stalls_later" and begun):
                released.wait()
            if kind == "lost" and begun:
                return self.connection.close()
            self.send_response(401 if kind == "unauthorized" else 200)
            self.end_headers()
            answer = ANSWER
            if kind in ("whole", "lost", "stalls_later"):
                answer = {"data": whole(json.loads(body).get("variables"))} if self.path == "/graphql" else {}
            self.wfile.write(json.dumps(answer).encode())
            return None

        do_GET = do_PUT = do_POST

        def log_message(self, *arguments):
            pass

    if kind == "refused":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            yield free.getsockname()[1], requests
        return
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield listening.server_port, requests if kind != "whole" else bodies
    finally:
        released.set()
        listening.shutdown()
        listening.server_close()


def mirrored(place, kind, code=PATIENCE, key="a" * 40, mode="online"):
    """Train against a stand-in; return the run folder, the lines about the dashboard and the requests."""
    with server(kind) as (port, requests):
        own = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "HOME": str(place), "NETRC": str(place / "none")}
        own |= {"WANDB_API_KEY": key} if key else {}
        words = patched(command(place, kind, *SHORT, f"--track.wandb={mode}"), code)
        done = python(*words[1:], env=environment(**own))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert [record["step"] for record in records(place / "runs" / kind)] == [*range(1, STEPS + 1)]
    assert key is None or all(key not in path.read_text(errors="replace") for path in files(place / "runs" / kind))
    return (
        place / "runs" / kind,
        re.findall(r"track\.wandb[:=].*", done.stderr),
        requests,
    )


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param("refused", None, id="no_key", marks=pytest.mark.slow),
        pytest.param("stalled", "a" * 40, id="stalled"),
        pytest.param("refused", "a" * 40, id="refused", marks=pytest.mark.slow),
        pytest.param("unauthorized", "a" * 40, id="unauthorized", marks=pytest.mark.slow),
    ],
)
def test_without_a_connection_the_run_is_recorded_offline(tmp_path, kind, key):
    run, (line,), _ = mirrored(tmp_path, kind, key=key)
    (offline,) = run.glob("wandb/offline-run-*")
    assert line.startswith("track.wandb=online: ")
    assert line.endswith(f"; recorded offline, send it with: wandb sync {offline}")
    assert list(offline.glob("*.wandb"))


@pytest.mark.slow
def test_answers_that_break_wandbs_process_cost_a_line_or_two(tmp_path):
    _, lines, requests = mirrored(tmp_path, "wrong")
    assert "/graphql" in requests
    assert 1 <= len(lines) <= 2
    assert all(line.startswith("track.wandb") for line in lines)


def test_a_status_of_wandbs_process_is_not_that_of_the_run(tmp_path, monkeypatch, capsys):
    dashboard = Dashboard.__new__(Dashboard)  # wandb itself must not start here, in a process that others fork from
    dashboard._experiment, dashboard.broken = SimpleNamespace(dir=str(tmp_path / "run" / "files")), False
    monkeypatch.setattr("wandb.teardown", sys.exit)  # as wandb.teardown does where its process has failed
    dashboard.finalize("unfinished")
    assert capsys.readouterr().err.startswith("track.wandb: its process ended with status 1; no longer mirrored")


@pytest.mark.slow
def test_the_death_of_wandbs_process_is_one_line(tmp_path):
    _, (line,), _ = mirrored(tmp_path, "refused", PATIENCE + KILL, mode="offline")
    assert line.startswith("track.wandb: ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lost", "stalls_later"])
def test_a_network_lost_in_mid_run_costs_a_line_and_all_can_be_sent_later(tmp_path, kind):
    run, (line,), requests = mirrored(tmp_path, kind)
    (place,) = run.glob("wandb/run-*")
    assert any(path.endswith(STREAM) for path in requests)
    assert line.endswith(f"not all was sent in 2 s; send it with: wandb sync --include-online {place}")
    with server("whole") as (port, bodies):
        own = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "HOME": str(tmp_path), "WANDB_API_KEY": "a" * 40}
        done = python("-m", "wandb", "sync", "--include-online", str(place), env=environment(**own))
    assert done.returncode == 0, done.stderr[-3000:]
    streamed = [json.loads(body).get("files") or {} for body in bodies if body.startswith(b"{")]
    lines = [line for files in streamed for line in files.get("wandb-history.jsonl", {}).get("content", [])]
    assert [record["consumed_tokens"] for record in map(json.loads, lines) if "grad_norm" in record] == [
        record["consumed_tokens"] for record in records(run)
    ]
