"""Runs of lab.fit as each launcher starts them, their processes, and signals to some of them."""

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path

import psutil

from tests.fits import command, records
from tests.forked import LIMIT_S, ROOT, Forked, restore_hangup

OWN = ("SLURM", "TORCHELASTIC", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "NODE_RANK", "GROUP_", "ROLE_", "OMP_NUM")
OWN += ("TORCH_CPP_LOG_LEVEL",)  # ranks set it themselves
TORCHRUN = ["-m", "torch.distributed.run", "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]


def environment(**variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    return {**clean, "OMP_WAIT_POLICY": "PASSIVE", **variables}


def worker(rank, world, port):
    """Return what torchrun sets for one of its workers on this machine."""
    meeting = {"TORCHELASTIC_RUN_ID": "tests", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    return meeting | {name: str(number) for name, number in numbers.items()}


def workers(of):
    place = port()
    return [environment(**worker(rank, of, place)) for rank in range(of)]


RESERVED = []


def port():
    """Reserve a port, which nobody gets who asks for any; torch's stores may share it, as they ask for reuse."""
    RESERVED.append(socket.socket())
    RESERVED[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    RESERVED[-1].bind(("127.0.0.1", 0))
    return RESERVED[-1].getsockname()[1]


def torchrun(words, *options, workers):
    """Turn a command of lab.fit into torchrun's."""
    python, dash_m, *rest = words
    return [python, *TORCHRUN, *options, f"--nproc-per-node={workers}", dash_m, *rest]


def meeting(name):
    """List the options by which the torchruns of two nodes on this machine meet."""
    place = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port()}", f"--rdzv-id={name}")
    return ("--nnodes=2", *place, "--local-addr=127.0.0.1")


def interpreter(words, variables):
    """Start a command in an interpreter of its own, as a launcher does."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    before = restore_hangup()  # a child inherits what this process ignores
    try:
        return subprocess.Popen(words, cwd=ROOT, env=variables, start_new_session=True, **streams)
    finally:
        signal.signal(signal.SIGHUP, before)


def copy(words, variables):
    """Start a command at once; its rank is not in what the system knows of it."""
    return Forked(words, env=variables, merged=True)


class Processes:
    """Everything that runs for one place: launchers, training processes, loaders."""

    def __init__(self, place: Path, commands: list[tuple[list[str], dict[str, str]]], start):
        self.place = place
        self.started = [start(words, variables) for words, variables in commands]

    def running(self):
        """List the processes of the sessions started, and those whose command line names the place."""
        sessions = {process.pid for process in self.started}
        found = []
        for process in psutil.process_iter():
            try:
                named = any(str(self.place) in word for word in process.cmdline())
                # A copy that was forked a moment ago has no session of its own yet.
                is_own = process.pid in sessions or os.getsid(process.pid) in sessions
                if (named or is_own) and process.status() != "zombie":
                    found.append(process)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return found

    def ranks(self):
        """List the training processes of interpreters in order of rank; launchers and loaders are none."""
        found = []
        for process in self.running():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                variables = process.environ()
                is_first = process.pid == self.started[0].pid
                if (is_first or "TORCHELASTIC_RUN_ID" in variables) and not is_loader(process):
                    found.append((int(variables.get("RANK", "-1")), process))
        workers = [(rank, process) for rank, process in found if rank >= 0]
        return [process for _, process in sorted(workers or found, key=itemgetter(0))]

    def send(self, number: signal.Signals, to: str):
        """Send a signal to `all` processes, the `first` rank, the last `rank`, the `launcher` or the `second` one."""
        launchers = {"launcher": 0, "second": 1}
        if to in launchers:
            chosen = [psutil.Process(self.started[launchers[to]].pid)]
        elif to == "all":
            chosen = self.running()
        else:
            chosen = self.ranks()[:1] if to == "first" else self.ranks()[-1:]
        signalled(chosen, number)

    def wait_for(self, run: Path, lines: int):
        """Wait until so many steps are recorded."""
        metrics, deadline = run / "metrics.jsonl", time.monotonic() + LIMIT_S
        while not metrics.exists() or metrics.read_text().count("\n") < lines:
            assert time.monotonic() < deadline, "the run never got that far"
            ended = [p for p in self.started if p.poll() is not None]
            assert not ended, ended[0].communicate()[0][-3000:]
            time.sleep(0.02)

    def finish(self):
        """Wait for the end and return each exit status and output."""
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in self.started]
        except subprocess.TimeoutExpired:
            late = [number for number, process in enumerate(self.started) if process.poll() is None]
            for process in self.started:
                process.kill()
            outputs = [process.communicate()[0][-1000:] for process in self.started]
            raise AssertionError(f"processes {late} have not ended: {outputs}") from None
        return [process.returncode for process in self.started], outputs

    def left(self, seconds: float = LIMIT_S):
        """List what still runs some time after all that was started has ended; loaders follow their parents."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.running()


def signalled(processes, number):
    """Send a signal to processes, of which any may have ended since it was listed."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def is_loader(process):
    """Tell a forked loader, whose parent has the same command line and environment."""
    parent = process.parent()
    return parent is not None and parent.cmdline() == process.cmdline() and parent.environ() == process.environ()


@contextmanager
def running(place, commands, start=copy):
    processes = Processes(place, commands, start)
    try:
        yield processes
    finally:
        signalled(processes.running(), signal.SIGKILL)
        for process in processes.started:
            process.wait(timeout=LIMIT_S)


def ended(place, commands):
    """Run commands to their end, after which nothing may be left; return each exit status and output."""
    with running(place, commands) as processes:
        statuses, outputs = processes.finish()
        assert processes.left() == []
    return statuses, outputs


def resumed(place, name, *options):
    """Resume a run without end until it has recorded more steps than before, and return the steps."""
    run = place / "runs" / name
    before = len(records(run))
    with running(place, [(command(place, name, *options, "--resume"), environment())]) as processes:
        processes.wait_for(run, before + 3)
    return [record["step"] for record in records(run)]


def patched(words, code):
    """Run lab.fit after some code, which may replace parts of it."""
    run = f"import runpy, sys\nsys.argv = {words[2:]!r}\n{code}\n"
    return [words[0], "-c", run + "runpy.run_module('lab.fit', run_name='__main__', alter_sys=True)", str(words[4])]
