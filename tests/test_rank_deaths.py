"""A rank or a launcher that dies: what is left ends within a minute, in a line that names it, and the run resumes."""

import re
import signal
import sys
import time
from datetime import timedelta

import pytest

from lab.train.run import make_strategy
from tests.fits import UNPROBED, command, fit, records
from tests.forked import LIMIT_S
from tests.launching import (
    TORCHRUN,
    environment,
    interpreter,
    patched,
    port,
    resumed,
    running,
    signalled,
    torchrun,
    workers,
)

ENDLESS = (*UNPROBED, "--train.tokens=4096000")
RARE = (*UNPROBED, "--train.tokens=204800", "--train.checkpoint_every_tokens=40960")  # every 40 of 200 steps
TWO = ("--train.devices=2", "--train.strategy=ddp")
FAILING = """
import os, time, torch
from lab.train import probe
from lab.model.decoder import Decoder
own, calls = {place}, []
def failing(*arguments, **options):
    if torch.is_grad_enabled() == {gradients}:
        calls.append(0)
        if len(calls) == {call} and int(os.environ["RANK"]) >= {first}:
            raise MemoryError("planted")
    return own(*arguments, **options)
{place} = failing
"""
PROBED = ("--train.tokens=8192", "--probe.every_tokens=4096", "--probe.tests=2", "--probe.max_length=128")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("deaths")
    fit(place, "prepares", *UNPROBED, "--train.tokens=2048", "--optim.warmup_steps=1")
    return place


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_and_the_run_resumes(place, rank):
    name = f"rank{rank}"
    options = (*ENDLESS, "--train.checkpoint_every_tokens=4096")
    with running(place, [(command(place, name, *options, *TWO), environment())]) as processes:
        processes.wait_for(place / "runs" / name, 5)
        processes.ranks()[rank].kill()
        statuses, (output,) = processes.finish()
        assert processes.left() == []
    assert statuses == [1]
    assert "Traceback" not in output, output
    (line,) = [line for line in output.splitlines() if "all ranks end" in line]
    assert re.match(rf"rank {rank} \(process \d+\) was killed by SIGKILL; all ranks end; continue with: ", line), line
    assert line.endswith("--resume")
    steps = resumed(place, name, *options)
    assert steps == list(range(1, len(steps) + 1))


def test_the_ranks_of_a_killed_launcher_save_and_end(place):
    words = command(place, "launcher", *ENDLESS, *TWO)
    with running(place, [(words, environment())], interpreter) as processes:
        processes.wait_for(place / "runs" / "launcher", 5)
        processes.started[0].kill()
        statuses, (output,) = processes.finish()
        assert processes.left() == []
    assert statuses == [-signal.SIGKILL]
    assert re.search("torchrun of rank 0 has ended; saving", output), output
    assert output.count("all saved") == 1


def meeting(name):
    """List the options of the torchrun of each of two nodes."""
    place = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port()}", f"--rdzv-id={name}")
    return ("--nnodes=2", *place, "--local-addr=127.0.0.1")


@pytest.mark.slow
@pytest.mark.parametrize("agent", [0, 1])
def test_the_ranks_of_all_nodes_save_and_end_after_the_death_of_one_agent(place, agent):
    name = f"agent{agent}"
    words = command(place, name, *ENDLESS, "--train.nodes=2", *TWO[1:])
    start = [(torchrun(words, *meeting(name), workers=1), environment())] * 2
    with running(place, start, interpreter) as processes:
        processes.wait_for(place / "runs" / name, 5)
        processes.started[agent].kill()
        _, outputs = processes.finish()
        assert processes.left() == []
    text = "".join(outputs)
    if agent == 1:  # the first one keeps the store, without which the other ends its rank, and so the run, maybe sooner
        assert re.search("torchrun of rank 1 has ended; saving", text), text
    assert text.count("all saved") == 1, text


IMPATIENT = """
from datetime import timedelta
from lab.train import run
run.TIMEOUT = timedelta(seconds=5)
"""


def test_ranks_wait_ten_minutes_for_each_other():
    assert {make_strategy(name, 2)._timeout for name in ("ddp", "fsdp")} == {timedelta(minutes=10)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "number", "told"),
    [  # gloo sees that a process has ended, NCCL does not: there it is like one that never answers
        pytest.param("ddp", signal.SIGSTOP, "[Tt]imed out", id="ddp_silent"),
        pytest.param("fsdp", signal.SIGSTOP, "[Tt]imed out", id="fsdp_silent"),
        pytest.param("fsdp", signal.SIGKILL, "", id="fsdp_killed"),
    ],
)
def test_a_rank_lost_on_another_node_ends_the_run_which_resumes(place, strategy, number, told):
    name = f"lost_{strategy}{number}"
    own = command(place, name, *RARE, "--train.nodes=2", f"--train.strategy={strategy}")
    words = patched(own, IMPATIENT)
    agent = [words[0], *TORCHRUN, *meeting(name), "--nproc-per-node=1", "--no-python", *words]
    with running(place, [(agent, environment())] * 2, interpreter) as processes:
        processes.wait_for(place / "runs" / name, 1)
        first, last = processes.ranks()
        left = next(process for process in processes.started if process.pid == first.ppid())
        processes.wait_for(place / "runs" / name, 45)
        signalled([last], number)  # between two saves, in which ranks wait for longer
        output = left.communicate(timeout=LIMIT_S)[0]
    assert left.returncode == 1
    assert re.search(rf"^rank 0 \(process {first.pid}\) failed \(\w+: .*{told}", output, re.M), output
    run = fit(place, name, *RARE, "--resume")
    assert [record["step"] for record in records(run)] == list(range(1, 201))


STEP = {"place": "Decoder.forward", "gradients": True, "call": 5}
GATHER = {"place": "probe.fill", "gradients": True, "call": 1}


def two_that_fail(place, strategy, fault, first=1):
    """Train on two ranks, of which those from the first on fail somewhere."""
    name = f"{strategy}{fault['call']}{fault['gradients']}{first}"
    words = command(place, name, *PROBED, "--train.devices=2", f"--train.strategy={strategy}")
    words = patched(words, FAILING.format(**fault, first=first))
    with running(place, [(words, variables) for variables in workers(2)]) as processes:
        statuses, outputs = processes.finish()
        assert processes.left() == []
    return statuses, "".join(outputs)


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        pytest.param("fsdp", GATHER, id="fsdp_gather"),
        pytest.param("fsdp", STEP, id="fsdp", marks=pytest.mark.slow),
        pytest.param("ddp", STEP, id="ddp", marks=pytest.mark.slow),
    ],
)
def test_a_collective_call_that_fails_on_one_rank_ends_all(place, strategy, fault):
    statuses, output = two_that_fail(place, strategy, fault)
    assert statuses == [1, 1]
    assert "MemoryError: planted" in output
    assert re.search(r"^rank 0 \(process \d+\) failed \(\w+: ", output, re.M), output
    assert output.count("Traceback") == (fault is STEP), "of the rank that failed, and none of the other"


LAUNCHER = """
import os, runpy, sys, time
for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        sys.argv = %r
        runpy.run_module("lab.fit", run_name="__main__", alter_sys=True)
time.sleep(600)
"""
AT_A_MOMENT = """
import os, pathlib, time
{imports}
own = {place}
def held(*arguments, **options):
    if os.environ["RANK"] in {ranks!r}:
        pathlib.Path({file!r}, os.environ["RANK"]).touch()
        time.sleep(600)
    return own(*arguments, **options)
{place} = held
"""
MOMENTS = {
    "reading": ("import lab.config", "lab.config.load_experiment", "01"),
    "meeting": ("from lab.train import run", "run.assemble", "1"),
    "preparing": ("from lab.data.module import PackedData", "PackedData.prepare_data", "0"),
    "restoring": ("from lab.train.checkpoint import Checkpointing", "Checkpointing.open", "1"),
    "compiling": ("from lab.model.decoder import Decoder", "Decoder.forward", "1"),
}


QUICK = ("reading", "meeting", "compiling")


@pytest.mark.parametrize(
    "moment", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MOMENTS]
)
def test_the_ranks_of_a_launcher_killed_before_the_first_step_end(place, tmp_path, moment):
    imports, held, ranks = MOMENTS[moment]
    argv = command(place, moment, *ENDLESS, *TWO)[2:]
    plant = AT_A_MOMENT.format(imports=imports, place=held, ranks=ranks, file=str(tmp_path))
    variables = {name: value for name, value in workers(2)[0].items() if name not in ("RANK", "LOCAL_RANK")}
    with running(place, [([sys.executable, "-c", plant + LAUNCHER % (argv,)], variables)]) as processes:
        while len([*tmp_path.iterdir()]) < len(ranks):
            assert processes.started[0].poll() is None
            time.sleep(0.05)
        processes.send(signal.SIGKILL, "launcher")
        processes.started[0].wait()
        assert processes.left() == []
        output = processes.started[0].output.read_text()
    lines = [line for line in output.splitlines() if "torchrun" in line]
    assert lines == ["torchrun of rank 0 has ended; nothing was trained"], output
    assert "Traceback" not in output, output


def test_a_rank_whose_launcher_ended_before_it_could_look_ends(place):
    variables = {**workers(2)[1], "TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "0"}  # nobody keeps it
    with running(place, [(command(place, "late", *ENDLESS, *TWO), variables)]) as processes:
        assert processes.finish() == ([1], ["torchrun of rank 1 has ended; nothing was trained\n"])
