"""Probes in processes of their own: the records of the training's own probes, in order, also after a stop."""

import json
import os
import signal
import time

import psutil
import pytest

from lab.train import checkpoints
from lab.train.callbacks import separate
from lab.train.callbacks.separate import Separate
from lab.train.folder import RunFolder
from tests.fits import command, exact_metrics, fit, probed, read_cases, records
from tests.launching import environment, running

LIMIT_S = 30
OPTIONS = ("--train.tokens=8192", "--probe.every_tokens=3072", "--probe.tests=3", "--probe.max_length=192")
SEPARATE = (*OPTIONS, "--probe.process=separate")


@pytest.fixture
def probes(tmp_path, monkeypatch):
    monkeypatch.setattr(separate, "MODULE", "tests.stand_in_probe")
    outcomes = []
    made = Separate(RunFolder(tmp_path), lambda consumed, outcome: outcomes.append((consumed, outcome)))
    yield made, outcomes
    made.stop()


def wait_until(done):
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_runs_at_a_time_in_order_and_one_that_dies_is_described(probes, tmp_path):
    made, outcomes = probes
    for tokens in (1000, 2000, 4000):
        made.add(tokens)
    assert json.loads((tmp_path / "probing/pending.json").read_text()) == {"consumed_tokens": [1000, 2000, 4000]}
    assert len(psutil.Process().children()) >= 1
    wait_until(lambda: not made.poll())
    assert outcomes == [
        (1000, ([{"at": 1000}], [])),
        (2000, "its process ended with status 3: last"),
        (4000, ([{"at": 4000}], [])),
    ]
    assert not (tmp_path / "probing").exists()


def test_what_was_stopped_is_run_after_a_resume_unless_it_comes_later(probes, tmp_path, monkeypatch):
    made, outcomes = probes
    for tokens in (3000, 4000, 5000):
        made.add(tokens)
    pid = made.process.pid
    made.stop()
    assert not psutil.pid_exists(pid)
    (tmp_path / "probing/pending.json").write_text('{"consumed_tokens": [1000, 4000, 5000]}')
    again = Separate(RunFolder(tmp_path), made.record)
    assert again.resume(4000) == [1000, 4000]
    wait_until(lambda: not again.poll())
    assert [consumed for consumed, _ in outcomes] == [1000, 4000]


def test_checkpoints_that_wait_for_a_probe_are_kept_until_then(tmp_path):
    def publish(tokens, held):
        (tmp_path / checkpoints.TEMPORARY).mkdir()
        checkpoints.publish(tmp_path, tokens, 1, held=held)
        return [int(path.name.removeprefix("tokens-")) for path in checkpoints.candidates(tmp_path)]

    assert publish(1000, []) == [1000]
    assert sorted(publish(2000, [1000])) == [1000, 2000]
    assert sorted(publish(3000, [1000])) == [1000, 3000]
    assert publish(4000, []) == [4000]


@pytest.mark.slow
def test_a_run_probed_separately_has_the_records_of_one_that_waits(tmp_path):
    own, other = fit(tmp_path, "own", *OPTIONS), fit(tmp_path, "other", *SEPARATE)
    assert exact_metrics(own) == exact_metrics(other)
    assert len({line["consumed_tokens"] for line in probed(own)}) == 3
    assert probed(own) == probed(other)
    assert read_cases(own) == read_cases(other)
    assert sorted(path.name for path in (own / "counts").iterdir()) == sorted(
        path.name for path in (other / "counts").iterdir()
    )
    assert not (other / "probing").exists()
    assert sorted(path.name for path in checkpoints.candidates(own / "checkpoints")) == sorted(
        path.name for path in checkpoints.candidates(other / "checkpoints")
    )


@pytest.mark.slow
def test_a_stopped_run_probes_what_was_left_when_it_is_resumed(tmp_path):
    whole = fit(tmp_path, "whole", *SEPARATE)
    with running(tmp_path, [(command(tmp_path, "cut", *SEPARATE), environment())]) as processes:
        run = tmp_path / "runs" / "cut"
        processes.wait_for(run, 4)
        os.kill(processes.started[0].pid, signal.SIGINT)
        statuses, outputs = processes.finish()
        assert processes.left() == []
    assert statuses == [75], outputs
    assert (run / "probing/pending.json").exists()
    run = fit(tmp_path, "cut", *SEPARATE, "--resume")
    assert records(run, "probes.jsonl", without=("model", "seconds")) == records(
        whole, "probes.jsonl", without=("model", "seconds")
    )
