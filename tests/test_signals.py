"""A signal by any way that launchers pass one on: the run saves, ends with its status, leaves nothing, and resumes."""

import signal

import pytest

from tests.fits import assert_same_run, command, fit, records
from tests.forked import python
from tests.launching import copy, environment, interpreter, patched, port, resumed, running, torchrun, workers

ENDLESS = ("--probe.every_tokens=null", "--probe.loss_tokens=0", "--train.tokens=4096000")
TWO = ("--train.devices=2", "--train.strategy=ddp")
SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT, "usr1": signal.SIGUSR1, "hup": signal.SIGHUP}
STATUS = {"alone": 75, "fit": 75, "two_agents": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("signals")
    fit(place, "prepares", "--train.tokens=8192", "--probe.loss_tokens=0", "--probe.tests=1")
    return place


def commands(launcher, place, name, *options):
    """Write what starts a run, one command for each that is started."""
    words = command(place, name, *ENDLESS, *options)
    agents = [*words, "--train.devices=1", "--train.nodes=2", "--train.strategy=ddp"]
    meeting = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port()}", f"--rdzv-id={name}")
    return {
        "alone": [(words, environment())],
        "fit": [([*words, *TWO], environment())],
        "two_agents": [(torchrun(agents, *meeting, "--local-addr=127.0.0.1", workers=1), environment())] * 2,
    }[launcher]


def check_stop(launcher, place, name, number, to, start=copy):
    run = place / "runs" / name
    with running(place, commands(launcher, place, name), start) as processes:
        processes.wait_for(run, 4)
        processes.send(number, to)
        statuses, outputs = processes.finish()
        assert set(statuses) == {STATUS[launcher]}, outputs
        assert sum(text.count("all saved") for text in outputs) == 1
        assert processes.left() == []
    saved = sorted((run / "checkpoints").iterdir())[-1]
    assert int(saved.name.removeprefix("tokens-")) == records(run)[-1]["consumed_tokens"]


def test_a_signal_to_the_process_group_leaves_the_loader_at_work(place):
    check_stop("alone", place, "alone", signal.SIGINT, "all")


def test_a_signal_to_lab_fit_is_passed_on_to_its_ranks_and_the_run_resumes(place):
    check_stop("fit", place, "fit", signal.SIGUSR1, "launcher")
    steps = resumed(place, "fit", *ENDLESS)
    assert steps == list(range(1, len(steps) + 1))


BEFORE_A_STEP = """
import os
import signal
import torch
torch.distributed.broadcast = lambda *_, **__: os._exit(9)
from lab.train.record import Recording
own = Recording.open
def opening(self, state):
    if self.launch.rank == 1:
        signal.raise_signal(signal.SIGTERM)
    own(self, state)
Recording.open = opening
"""


def test_sigterm_before_the_first_step_stops_all_ranks_after_it(place):
    words = patched(command(place, "early", *ENDLESS, *TWO), BEFORE_A_STEP)
    with running(place, [(words, variables) for variables in workers(2)]) as processes:
        statuses, outputs = processes.finish()
    assert statuses == [75, 75], outputs
    assert len(records(place / "runs" / "early")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize("to", ["all", "rank", "launcher"])
@pytest.mark.parametrize("launcher", STATUS)
def test_every_signal_by_every_way(place, launcher, to, number):
    check_stop(launcher, place, f"{launcher}_{to}_{number.name}", number, to, interpreter)


def test_only_a_second_ctrl_c_ends_a_run_at_once():
    code = (
        "import signal\n"
        "from lab.core.launch import Launch\n"
        "from lab.train import signals\n"
        "signals.COPY_S = 600.0  # within which a copy follows, on any machine\n"
        "stopping = signals.Stopping(Launch())\n"
        "handling = stopping.handling()\n"
        "handling.__enter__()\n"
        "for name in ('SIGTERM', 'SIGUSR1', 'SIGTERM', 'SIGINT', 'SIGINT'): signal.raise_signal(signal.Signals[name])\n"
        "print(stopping.is_asked, flush=True)  # all of them within a moment, as launchers repeat them\n"
        "stopping.asked_at -= 2 * signals.COPY_S\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('saves', flush=True)\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "print('never')"
    )
    done = python("-c", code)
    assert (done.stdout.split(), done.returncode) == (["True", "saves"], -signal.SIGINT), done.stderr


IN_LAST = 2 * (5 + 2) + 2  # a probe has 5 lengths and 2 distances
PROBES = ("--train.tokens=20480", "--probe.max_length=192", "--probe.loss_tokens=0")
AT_A_CALL = """
import os, signal
from lab.train.probe import ModelInTraining
calls, generate = [], ModelInTraining.generate
def counted(self, *arguments, **options):
    calls.append(0)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.{name})
    return generate(self, *arguments, **options)
ModelInTraining.generate = counted
"""


def cut_short(place, name, number, call, *options, status):
    """Run until a call of the model in a probe sends its process a signal; return the probes recorded so far."""
    words = patched(command(place, name, *PROBES, *options), AT_A_CALL.format(call=call, name=number.name))
    with running(place, [(words, variables) for variables in [environment()]]) as processes:
        statuses, outputs = processes.finish()
        assert set(statuses) == {status}, outputs
        assert processes.left() == []
    file = place / "runs" / name / "probes.jsonl"
    return sorted({line["consumed_tokens"] for line in records(file.parent, file.name)}) if file.exists() else []


def test_a_probe_that_was_cut_short_is_run_whole_by_the_resumption(place):
    whole = fit(place, "probed", *PROBES)
    first, second, _ = sorted({record["consumed_tokens"] for record in records(whole, "probes.jsonl")})
    assert cut_short(place, "cut", signal.SIGUSR1, 2, status=75) == []
    found = cut_short(place, "cut", signal.SIGKILL, IN_LAST, "--resume", status=-signal.SIGKILL)
    assert found == [first, second]
    fit(place, "cut", *PROBES, "--resume")
    assert_same_run(place / "runs" / "cut", whole)


def test_what_is_not_prepared_is_refused_in_one_line_by_every_rank(place, tmp_path):
    options = (f"--data.folder={tmp_path}", "--data.corpus.name=text", f"--data.corpus.path={tmp_path}", *TWO)
    words = [word for word in command(place, "bare", *options) if not word.startswith(f"--data.folder={place}")]
    with running(place, [(words, variables) for variables in workers(2)]) as processes:
        statuses, outputs = processes.finish()
    assert statuses == [2, 2]
    assert [text.count("\n") for text in outputs] == [1, 0]
