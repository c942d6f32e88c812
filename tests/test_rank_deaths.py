"""A rank or a launcher that dies: what is left ends or goes on, in one line that names it."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from lab.train.callbacks.watching import zombie_code
from lab.train.starting import warn_of_changes
from tests.fits import UNPROBED, command, fit, records
from tests.launching import environment, interpreter, patched, port, running, task, torchrun

SHORT = (*UNPROBED, "--train.tokens=40960", "--train.checkpoint_every_tokens=4096", "--track.picture=false")
TWO = ("--train.devices=2", "--train.strategy=ddp")


FAILING = """
import os, time, torch
from lab.train.callbacks import probing, watching
from lab.model.decoder import Decoder
from lightning import Trainer
own, calls = {place}, []
def failing(*arguments, **options):
    if torch.is_grad_enabled() == {gradients}:
        calls.append(0)
        if len(calls) == {call} and int(os.environ["SLURM_PROCID"]) >= {first}:
            raise MemoryError("planted")
    return own(*arguments, **options)
{place} = failing
watching.LEAVE_S = 1.0
if {stays}:
    Trainer._teardown = lambda self: time.sleep(60)
"""
PROBED = ("--train.tokens=8192", "--probe.every_tokens=4096", "--probe.tests=2", "--probe.max_length=128")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("deaths")
    fit(place, "whole", *SHORT, "--data.prefetch=2")
    return place


def named(output, rank):
    """Return the line that names a rank, after checking that there is one, and no traceback."""
    assert "Traceback" not in output, output
    (line,) = [line for line in output.splitlines() if "all ranks end" in line]
    assert re.match(rf"rank {rank} \(process \d+\) (was killed by SIGKILL|has ended); ", line), line
    assert line.endswith("--resume")
    return line


@pytest.mark.parametrize(("world", "rank"), [(2, 1), pytest.param(8, 5, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_by_those_that_are_left(place, world, rank):
    name, node = f"tasks{world}", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
    words = command(
        place, name, *SHORT, f"--train.devices={world}", "--train.strategy=ddp", "--train.micro_batch_tokens=128"
    )
    with running(place, [(words, environment(**task(n, world) | node)) for n in range(world)]) as processes:
        processes.wait_for(place / "runs" / name, 5)
        processes.started[rank].process.kill()
        statuses, outputs = processes.finish()
        assert processes.left() == []
    assert statuses == [-signal.SIGKILL if number == rank else 1 for number in range(world)]
    named("".join(outputs), rank)


STEP = {"place": "Decoder.forward", "gradients": True, "call": 5}
GATHER = {"place": "probing.fill", "gradients": True, "call": 1}
PROBE = {"place": "Decoder.forward", "gradients": False, "call": 5}


def two_that_fail(place, strategy, fault, *, first=1, stays=False):
    """Train on two ranks, of which those from the first on fail somewhere, and may stay in their teardown."""
    name, node = (
        f"{strategy}{fault['call']}{fault['gradients']}{first}{stays}",
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())},
    )
    words = command(place, name, *PROBED, "--train.devices=2", f"--train.strategy={strategy}")
    words = patched(words, FAILING.format(**fault, first=first, stays=stays))
    with running(place, [(words, environment(**task(n, 2) | node)) for n in range(2)]) as processes:
        statuses, outputs = processes.finish()
        assert processes.left() == []
    return statuses, "".join(outputs)


@pytest.mark.parametrize(
    ("strategy", "fault", "stays"),
    [
        pytest.param("fsdp", GATHER, False, id="fsdp_gather"),
        pytest.param("fsdp", STEP, True, id="fsdp_that_stays", marks=pytest.mark.slow),
        pytest.param("fsdp", STEP, False, id="fsdp", marks=pytest.mark.slow),
        pytest.param("ddp", STEP, False, id="ddp", marks=pytest.mark.slow),
        pytest.param("ddp", STEP, True, id="ddp_that_stays", marks=pytest.mark.slow),
    ],
)
def test_a_collective_call_that_fails_on_one_rank_ends_all(place, strategy, fault, stays):
    statuses, output = two_that_fail(place, strategy, fault, stays=stays)
    assert statuses == [1, 1]
    (line,) = [line for line in output.splitlines() if "all ranks end" in line]
    assert re.match(r"rank 1 \(process \d+\) (has ended|ended with status 1); all ranks end; continue with: ", line)
    if stays or fault is GATHER:
        assert re.search(r"^rank 1 \(process \d+\) failed \(MemoryError: planted\)$", output, re.M), output
        assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1], ids=["all", "one"])
def test_a_sharded_probe_that_fails_costs_the_probe_only(place, first):
    statuses, output = two_that_fail(place, "fsdp", PROBE, first=first)
    assert statuses == [0, 0], output
    assert f"failed (rank {first}: MemoryError: planted); training goes on" in output


def test_how_a_process_ended_is_read_before_its_parent_asks():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert zombie_code(child.pid) is None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert zombie_code(child.pid) == -signal.SIGKILL
    child.wait()
    assert zombie_code(child.pid) is None


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_of_lightnings_launcher_is_named_with_its_signal(place, rank):
    name = f"lightning{rank}"
    with running(place, [(command(place, name, *SHORT, *TWO), environment())], interpreter) as processes:
        processes.wait_for(place / "runs" / name, 5)
        processes.ranks()[rank].kill()
        statuses, outputs = processes.finish()
        assert processes.left() == []
    assert statuses == [1 if rank else -signal.SIGKILL]
    line = named(outputs[0], rank)
    assert rank == 0 or "was killed by SIGKILL" in line, "its parent knows"
    run = fit(place, name, *SHORT, "--resume")
    assert [record["step"] for record in records(run)] == list(range(1, 41))


@pytest.mark.slow
def test_torchrun_starts_the_ranks_again_and_they_resume(place):
    words = torchrun(command(place, "again", *SHORT, *TWO), "--standalone", "--max-restarts=1")
    with running(place, [(words, environment())], interpreter) as processes:
        processes.wait_for(place / "runs" / "again", 10)
        processes.ranks()[1].kill()
        statuses, outputs = processes.finish()
        assert processes.left() == []
    assert statuses == [0], outputs[0][-6000:]
    assert "rank 1 (process " in outputs[0]
    environment_of = json.loads((place / "runs" / "again" / "environment.json").read_text())
    assert len(environment_of["resumes"]) == 1
    assert [record["step"] for record in records(place / "runs" / "again")] == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.parametrize("agent", [0, 1])
def test_a_killed_agent_of_torchrun_ends_all_ranks_saved(place, agent):
    name = f"agent{agent}"
    words = command(place, name, *SHORT, "--train.tokens=4096000", "--train.nodes=2", *TWO[1:])
    words = [word for word in words if word != "--train.tokens=40960"]
    meeting = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port()}", f"--rdzv-id={name}")
    start = [(torchrun(words, *meeting, "--local-addr=127.0.0.1", workers=1), environment())] * 2
    with running(place, start, interpreter) as processes:
        processes.wait_for(place / "runs" / name, 5)
        processes.started[agent].kill()
        _, outputs = processes.finish()
        assert processes.left(60) == []
    text = "".join(outputs)
    assert re.search(r"torchrun \(process \d+\) of rank \d has ended; saving", text), text
    assert text.count("all saved") == 1


def test_other_threads_and_versions_are_named_in_one_line(tmp_path, capsys):
    before = {"threads": 1, "versions": {"torch": "2.11.0", "numpy": "2.0.0", "xformers": "0.0.30"}}
    now = {"threads": 2, "versions": {"torch": "2.13.0", "numpy": "2.0.0"}}
    warn_of_changes(tmp_path, before, before)
    assert capsys.readouterr() == ("", "")
    warn_of_changes(tmp_path, before, now)
    (line,) = capsys.readouterr().err.splitlines()
    assert "threads 2, was 1; torch 2.13.0, was 2.11.0; xformers None, was 0.0.30" in line
    assert "numpy" not in line
