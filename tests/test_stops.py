"""A run that is stopped or loses a process: what is left saves, ends with a line that says why, and resumes."""

import itertools
import re
import signal
import sys
import textwrap
import time

import pytest

from lab.core.errors import DataError
from tests import launching
from tests.faults import Fault, planted, planting
from tests.fits import UNPROBED, assert_same_run, command, fit, options_of, records
from tests.forked import LIMIT_S, ROOT, python
from tests.launching import copy, ended, environment, interpreter, meeting, running, workers

ENDLESS = (*UNPROBED, "--train.tokens=4096000", "--train.checkpoint_every_tokens=4096")
RARE = (*UNPROBED, "--train.tokens=204800", "--train.checkpoint_every_tokens=40960")  # every 40 of 200 steps
TWO = options_of("ddp2")
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("stops")
    fit(place, "prepares", *UNPROBED, "--train.tokens=2048", "--optim.warmup_steps=1")
    return place


def stop(place, launcher, name, to, number, start):
    """Send a signal to a run without end after some steps; return its exit statuses and output."""
    words = command(place, name, *ENDLESS, *(TWO if launcher == "fit" else ()))
    commands = [(words, environment())]
    if launcher == "agents":
        words += ["--train.nodes=2", "--train.strategy=ddp"]
        commands = [(launching.torchrun(words, *meeting(name), workers=1), environment())] * 2
    with running(place, commands, start) as processes:
        processes.wait_for(place / "runs" / name, 5)
        processes.send(number, to)
        statuses, outputs = processes.finish()
        assert processes.left() == []
    return {*statuses}, "".join(outputs)


def check_saved(run, text):
    assert text.count("all saved") == 1, text
    saved = sorted((run / "checkpoints").iterdir())[-1]
    assert int(saved.name.removeprefix("tokens-")) == records(run)[-1]["consumed_tokens"]


def check_resumption(place, name):
    steps = launching.resumed(place, name, *ENDLESS)
    assert steps == list(range(1, len(steps) + 1))


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
STATUS = {"alone": 75, "fit": 75, "agents": 1}
WAYS = itertools.product(STATUS, ("all", "rank", "launcher"), SIGNALS, [interpreter])
WAYS = [pytest.param(*way, marks=SLOW) for way in WAYS]
WAYS += [("alone", "all", signal.SIGINT, copy)]  # also to the loader at work, as from a terminal
WAYS += [pytest.param("fit", "launcher", signal.SIGUSR1, copy, marks=SLOW)]


@pytest.mark.parametrize(("launcher", "to", "number", "start"), WAYS)
def test_every_signal_by_every_way(place, launcher, to, number, start):
    name = f"{launcher}_{to}_{number.name}_{start.__name__}"
    statuses, text = stop(place, launcher, name, to, number, start)
    assert statuses == {STATUS[launcher]}, text
    check_saved(place / "runs" / name, text)
    if (launcher, to, start) == ("fit", "launcher", copy):
        check_resumption(place, name)


RANK = r"rank {} \(process \d+\) was killed by SIGKILL; all ranks end; continue with: .*--resume"
GONE = "torchrun of rank {} has ended; saving"


@pytest.mark.parametrize(
    ("launcher", "to", "start", "status", "line"),
    [
        ("fit", "rank", copy, {1}, RANK.format(1)),
        pytest.param("fit", "launcher", interpreter, {-signal.SIGKILL}, GONE.format(0), marks=SLOW),
        pytest.param("fit", "first", copy, {1}, RANK.format(0), marks=SLOW),
        # the first one keeps the store, without which the other ends its rank, and so the run, maybe sooner
        pytest.param("agents", "launcher", interpreter, None, "", marks=SLOW),
        pytest.param("agents", "second", interpreter, None, GONE.format(1), marks=SLOW),
    ],
)
def test_what_is_left_of_a_killed_run_saves_or_ends_in_a_line(place, launcher, to, start, status, line):
    name = f"{launcher}_{to}_killed"
    statuses, text = stop(place, launcher, name, to, signal.SIGKILL, start)
    assert status is None or statuses == status, text
    assert re.search(line, text), text
    if to in ("rank", "first"):
        assert "Traceback" not in text, text
        check_resumption(place, name)
    else:
        check_saved(place / "runs" / name, text)


IMPATIENT = "import datetime\nfrom lab.train import run\nrun.TIMEOUT = datetime.timedelta(seconds=5)"


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
    words = launching.patched(command(place, name, *RARE, "--train.nodes=2", f"--train.strategy={strategy}"), IMPATIENT)
    agent = [words[0], *launching.TORCHRUN, *meeting(name), "--nproc-per-node=1", "--no-python", *words]
    with running(place, [(agent, environment())] * 2, interpreter) as processes:
        processes.wait_for(place / "runs" / name, 1)
        first, last = processes.ranks()
        left = next(process for process in processes.started if process.pid == first.ppid())
        processes.wait_for(place / "runs" / name, 45)
        launching.signalled([last], number)  # between two saves, in which ranks wait for longer
        output = left.communicate(timeout=LIMIT_S)[0]
    assert left.returncode == 1
    assert re.search(rf"^rank 0 \(process {first.pid}\) failed \(\w+: .*{told}", output, re.M), output
    run = fit(place, name, *RARE, "--resume")
    assert [record["step"] for record in records(run)] == list(range(1, 201))


def failing(at, call=1):
    return Fault(at, MemoryError("planted"), call, ranks=(1,))


STEP = failing("lab.train.loop:compute_loss", 5)  # after a probe
PROBED = ("--train.tokens=8192", "--probe.every_tokens=4096", "--probe.tests=2", "--probe.max_length=128")
ONE_STEP = r"stopped after (\d{3}|1,0\d\d) tokens"
EARLY = Fault("lab.train.record:Recording.open", int(signal.SIGTERM), ranks=(1,))
ALONE = r"\A(?!.* failed \(|.*planted.*planted).*^file: planted$"
UNREAD = Fault("lab.train.loop:compute_loss", DataError("file: planted"), 3, ranks=(1,))
LATE = Fault("lab.train.record:Recording.close", int(signal.SIGKILL), ranks=(1,))
BEFORE = [  # as each rank gets there, while the others may be further or still meet
    Fault(at, int(signal.SIGTERM)) for at in ("lab.train.run:assemble", "lab.train.agreement:check_network")
]
CONNECTED = [  # the first rank has ended, while the other ends slowly and its main thread waits in gloo
    Fault("lab.train.run:Assembled.connect", int(signal.SIGTERM), ranks=(0,)),
    Fault("lab.data.module:PackedData.prepare_data", 60.0, call=3, ranks=(0,)),
    Fault("lab.train.agreement:os._exit", 2.0, ranks=(1,)),
]
# What a rank prints of its data may still follow: it ends when all have been told.
DATA = r"((data|run|attention|compiled blocks): [^\n]*\n)*"  # the main thread prints until the one of signals ends it
UNTRAINED = rf"\A{DATA}interrupted before training; continue with:\n  probe-lab fit [^\n]*--resume\n{DATA}\Z"
LEFT = r"(?m)^rank 0 \(process \d+\) failed \(\w+: "
UNPREPARED = ("--data.corpus={name: slimpajama}",)


@pytest.mark.parametrize(
    ("part", "options", "faults", "statuses", "tracebacks", "text"),
    [
        pytest.param("fsdp2", PROBED, [failing("lab.train.probe:fill")], [1, 1], 0, LEFT, id="fsdp_gather"),
        pytest.param("fsdp2", PROBED, [STEP], [1, 1], 1, LEFT, id="fsdp_step", marks=SLOW),
        pytest.param("ddp2", PROBED, [STEP], [1, 1], 1, LEFT, id="ddp_step", marks=SLOW),
        pytest.param("ddp2", ENDLESS, [EARLY], [75, 75], 0, ONE_STEP, id="early_sigterm"),
        pytest.param("ddp2", UNPREPARED, [], [2, 2], 0, r"\A.*: not prepared .*\n\Z", id="not_prepared"),
        pytest.param("ddp2", ENDLESS, [UNREAD], [2, 2], 0, ALONE, id="alone"),
        pytest.param("ddp2", ENDLESS, [EARLY, LATE], [75, -9], 0, ONE_STEP, id="dies_after_the_save"),
        pytest.param("ddp2", ENDLESS, BEFORE[:1], [75, 75], 0, UNTRAINED, id="sigterm_before_training"),
        pytest.param("ddp2", ENDLESS, BEFORE[1:], [75, 75], 0, UNTRAINED, id="sigterm_before_connection", marks=SLOW),
        pytest.param("ddp2", ENDLESS, CONNECTED, [75, 75], 0, UNTRAINED, id="sigterm_while_connected", marks=SLOW),
    ],
)
def test_what_comes_to_one_rank_ends_all(place, part, options, faults, statuses, tracebacks, text, request):
    words = planted(command(place, request.node.callspec.id, *options, *options_of(part)), *faults)
    found, outputs = ended(place, [(words, variables) for variables in workers(2)])
    output = "".join(outputs)
    assert (found, output.count("Traceback")) == (statuses, tracebacks), output
    assert re.search(text, output, re.S | re.M), output
    assert ("MemoryError: planted" in output) == (statuses == [1, 1])


LAUNCHER = """
import os, runpy, sys, time
for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        sys.argv = %r
        runpy.run_module("lab.fit", run_name="__main__", alter_sys=True)
time.sleep(600)
"""
MOMENTS = [  # where some ranks are when their launcher is killed
    pytest.param("lab.config:load_experiment", (0, 1), id="reading"),
    pytest.param("lab.train.run:assemble", (1,), id="meeting"),
    pytest.param("lab.model.decoder:Decoder.forward", (1,), id="compiling"),
    pytest.param("lab.data.module:PackedData.prepare_data", (0,), id="preparing", marks=SLOW),
    pytest.param("lab.train.checkpoint:Checkpointing.open", (1,), id="restoring", marks=SLOW),
]


@pytest.mark.parametrize(("at", "ranks"), MOMENTS)
def test_the_ranks_of_a_launcher_killed_before_the_first_step_end(place, tmp_path, at, ranks, request):
    words = command(place, request.node.callspec.id, *ENDLESS, *TWO)
    code = planting(Fault(at, str(tmp_path), ranks=ranks)) + LAUNCHER % (words[2:],)
    variables = {name: value for name, value in workers(2)[0].items() if name not in ("RANK", "LOCAL_RANK")}
    with running(place, [([sys.executable, "-c", code], variables)]) as processes:
        while len([*tmp_path.iterdir()]) < len(ranks):
            assert processes.started[0].poll() is None
            time.sleep(0.05)
        processes.send(signal.SIGKILL, "launcher")
        processes.started[0].wait()
        assert processes.left() == []
        output = processes.started[0].output.read_text()
    assert re.findall(".*torchrun.*", output) == ["torchrun of rank 0 has ended; nothing was trained"], output
    assert "Traceback" not in output, output


IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "lab.config":
            Path({folder!r}, {rank!r}).touch()
            time.sleep(600)
sys.meta_path.insert(0, Finder())
"""
SITE = """
import os, sys, time
from pathlib import Path
if os.environ.get("RANK") == {rank!r}:
"""
INTERVALS = {  # from the start of a rank to its exit: a call in each, and how long it is delayed
    "lab.config": 600,
    "lab.train.agreement:check_network": 600,
    "lab.train.run:assemble": 600,
    "lab.train.run:Assembled.build": 600,
    "lab.train.checkpoint:Checkpointing.open": 600,
    "lab.train.state:Stopping.handling": 600,
    "lab.train.record:Recording.open": 15,  # all ranks train from here on, and stop after the first step
    "lab.train.record:Recording.close": 15,  # all is saved
}
SENT = [(signal.SIGTERM, "launcher"), (signal.SIGKILL, "rank"), (signal.SIGINT, "all")]
ENDS_S = 45


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(("number", "to"), SENT, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("at", INTERVALS)
def test_both_ranks_end_soon_wherever_one_is_late(place, tmp_path, at, number, to, rank):
    name, marks = f"late_{at.rpartition('.')[2]}_{number.name}_{rank}", tmp_path / "marks"
    marks.mkdir()
    late = planting(Fault(at, str(marks), ranks=(int(rank),), waits_s=INTERVALS[at]))
    if at == "lab.config":
        late = IMPORT.format(folder=str(marks), rank=rank)
    (tmp_path / "sitecustomize.py").write_text(SITE.format(rank=rank) + textwrap.indent(late, "    "))
    tokens = "--train.tokens=2048" if "close" in at else "--train.tokens=4096000"
    words = command(place, name, *UNPROBED, tokens, "--optim.warmup_steps=1", *TWO)
    with running(place, [(words, environment(PYTHONPATH=f"{tmp_path}:{ROOT}"))], interpreter) as processes:
        while not [*marks.iterdir()]:
            assert processes.started[0].poll() is None, processes.finish()
            time.sleep(0.05)
        time.sleep(1)  # in which the other rank gets to where it waits
        processes.send(number, to)
        output = processes.started[0].communicate(timeout=ENDS_S)[0]
        assert processes.left(ENDS_S) == []
    assert processes.started[0].returncode == (1 if to == "rank" else 75), output
    assert "Traceback" not in output, output
    if to == "rank":
        assert re.search(RANK.format(1), output), output
    elif "close" not in at:
        assert len(re.findall("before training|nothing was written|all saved", output)) == 1, output


def test_a_rank_whose_launcher_ended_before_it_could_look_ends(place):
    late = {**workers(2)[1], "TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "0"}  # nobody keeps the store
    statuses, outputs = ended(place, [(command(place, "late", *ENDLESS, *TWO), late)])
    assert (statuses, outputs) == ([1], ["torchrun of rank 1 has ended; nothing was trained\n"])


IN_LAST = 2 * (5 + 2) + 2  # a call of the model in the third probe, as a probe has 5 lengths and 2 distances
PROBES = ("--train.tokens=20480", "--probe.max_length=192", "--probe.loss_tokens=0")


def test_a_probe_that_was_cut_short_is_run_whole_by_the_resumption(place):
    whole, run = fit(place, "probed", *PROBES), place / "runs" / "cut"
    first, second, _ = sorted({record["consumed_tokens"] for record in records(whole, "probes.jsonl")})
    for number, call, status in ((signal.SIGUSR1, 2, 75), (signal.SIGKILL, IN_LAST, -signal.SIGKILL)):
        fault = Fault("lab.train.probe:ModelInTraining.generate", int(number), call)
        words = planted(command(place, "cut", *PROBES, "--resume"), fault)
        assert ended(place, [(words, environment())])[0] == [status]
        assert (run / "probes.jsonl").exists() == (status < 0), "nothing of a probe that was cut short is recorded"
    assert {record["consumed_tokens"] for record in records(run, "probes.jsonl")} == {first, second}
    fit(place, "cut", *PROBES, "--resume")
    assert_same_run(run, whole)


TWICE = """
import signal
from lab.core.launch import Launch
from lab.train import state
state.COPY_S = 600.0  # within which a copy follows, on any machine
stopping = state.Stopping(Launch())
handling = stopping.handling()
handling.__enter__()
for name in ('SIGTERM', 'SIGUSR1', 'SIGTERM', 'SIGINT', 'SIGINT'): signal.raise_signal(signal.Signals[name])
print(stopping.is_asked, flush=True)  # all of them within a moment, as launchers repeat them
stopping.asked_at -= 2 * state.COPY_S
signal.raise_signal(signal.SIGTERM)
print('saves', flush=True)
signal.raise_signal(signal.SIGINT)
print('never')
"""


def test_only_a_second_ctrl_c_ends_a_run_at_once():
    done = python("-c", TWICE)
    assert (done.stdout.split(), done.returncode) == (["True", "saves"], -signal.SIGINT), done.stderr
