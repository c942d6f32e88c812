"""Real sweeps of lab.fit: killed and restarted."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from lab.config import load_experiment
from lab.sweep.__main__ import main
from tests.fits import CONFIG, ROOT, assert_same_run, fit

LIMIT_S = 300
SWEEP = {
    "method": "grid",
    "program": "lab.fit",
    "command": ["${env}", "${interpreter}", "-m", "${program}", str(CONFIG), "--track.wandb=online", "${args}"],
    "parameters": {"run.seed": {"values": [0, 1]}},
}


@pytest.fixture
def words(tmp_path):
    (tmp_path / "sweep.yaml").write_text(json.dumps(SWEEP))
    where = [f"--run.folder={tmp_path / 'runs'}", f"--data.folder={tmp_path / 'shards'}"]
    return [sys.executable, "-m", "lab.sweep", str(tmp_path / "sweep.yaml"), *where]


def test_mistakes_are_status_2_and_a_dry_run_starts_nothing(words, tmp_path, capsys, monkeypatch):
    arguments = words[3:]
    assert [main([*arguments, "--seeds=0"]), main([*arguments, "--index=2"])] == [2] * 2
    beginnings = "--seeds=0: must be >= 1; ", "--index=2: must be < 2, "
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith(words) for line, words in zip(lines, beginnings, strict=True)] == [True] * 2
    assert main([*arguments, "--dry_run", "--seeds=3", "--jobs=2"]) == 0
    listed = capsys.readouterr().out
    assert (listed.count("-m lab.fit"), "3 runs: 3 waiting" in listed) == (3, True)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("SLURM_STEP_NUM_TASKS=3: 3 copies")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_killed_sweep_ends_with_the_runs_of_one_that_was_not(words, tmp_path):
    names = [load_experiment(CONFIG, {"run.name": "auto", "run.seed": seed}).run.name for seed in (0, 1)]
    sweep = subprocess.Popen([*words, "--jobs=2"], cwd=ROOT)
    metrics, deadline = tmp_path / "runs" / names[0] / "metrics.jsonl", time.monotonic() + LIMIT_S
    while not metrics.exists() or metrics.read_text().count("\n") < 10:
        assert time.monotonic() < deadline, "the run never got that far"
        time.sleep(0.02)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait(LIMIT_S)
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    done = run([*words, "--jobs=1"])
    assert (done.returncode, "2 runs: 2 finished" in done.stdout) == (0, True), done.stderr
    assert len(list((tmp_path / "shards").glob("synthetic-*"))) == 1
    for seed, name in enumerate(names):
        assert_same_run(tmp_path / "runs" / name, fit(tmp_path, f"whole_{seed}", f"--run.seed={seed}"))
    assert "2 runs: 2 finished" in run(words).stdout
