"""Processes that stay, for tests of several ranks: they load torch and meet once, then run any job."""

import contextlib
import io
import os
import queue
import time
import traceback

from lab.config import load_experiment
from lab.core.arguments import parse_overrides
from lab.core.errors import LabError
from tests.fits import CONFIG, PARTS, settings_of, world_of
from tests.forked import CONTEXT
from tests.launching import port, worker

LIMIT_S = 240  # for one job on a busy machine
POLL_S = 1.0


def serve(rank, world, port, jobs, answers):
    """Run jobs as one rank; the variables are those that torchrun sets."""
    os.environ |= worker(rank, world, port) | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    from torch import set_num_threads

    set_num_threads(1)  # torch is loaded, and reads no variable any more
    while True:
        job, arguments = jobs.get()
        try:
            answers.put((rank, job(*arguments), None))
        except BaseException:
            answers.put((rank, None, traceback.format_exc()))


class Ranks:
    """So many processes on this machine; `run` gives one job to all and returns their results by rank."""

    def __init__(self, world):
        self.jobs = [CONTEXT.Queue() for _ in range(world)]
        self.answers, self.processes, place = CONTEXT.Queue(), [], port()
        for rank, jobs in enumerate(self.jobs):
            arguments = (rank, world, place, jobs, self.answers)
            self.processes.append(CONTEXT.Process(target=serve, args=arguments, daemon=True))
            self.processes[rank].start()

    @property
    def alive(self):
        return all(process.is_alive() for process in self.processes)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.join()

    def run(self, job, *arguments):
        for jobs in self.jobs:
            jobs.put((job, arguments))
        results, deadline = {}, time.monotonic() + LIMIT_S
        try:
            while len(results) < len(self.processes):
                try:
                    rank, result, fault = self.answers.get(timeout=POLL_S)
                except queue.Empty:
                    assert time.monotonic() < deadline, f"ranks {sorted(results)} of {len(self.processes)} answered"
                    assert self.alive, f"a rank died: exit codes {[process.exitcode for process in self.processes]}"
                    continue
                assert fault is None, f"rank {rank}: {fault}"
                results[rank] = result
        except BaseException:
            self.stop()  # some ranks may wait for others for ever
            raise
        return [results[rank] for rank in sorted(results)]


class Pool:
    """Ranks by their number, started when they are first asked for."""

    def __init__(self):
        self.started = {}

    def __call__(self, world):
        if world not in self.started or not self.started[world].alive:
            self.started[world] = Ranks(world)
        return self.started[world]

    def train(self, part, place, name, *options, resume=False, faults=(), job=None):
        """Train on the processes of a part, and return the result of each; the last one of equal options counts."""
        settings = {}
        for word in (*settings_of(place, name), *options):
            settings |= parse_overrides([word])
        settings |= PARTS[part]
        results = self(world_of(part)).run(job or train, settings, resume, *faults)
        assert faults or job or results == [0] * world_of(part), "ends well by default"
        return results

    def stop(self):
        for ranks in self.started.values():
            ranks.stop()


def train(settings, resume=False, *faults, errors=None):
    """Train cpu_test.yaml under other settings as one of the ranks, and return the exit status."""
    from lab.train.run import run_experiment

    with contextlib.ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault.patch())
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(errors or io.StringIO()))
        return run_experiment(load_experiment(CONFIG, settings), resume, "")


def outcome(settings, resume=False, *faults):
    """Return the exit status of a rank or its error, and the lines it reports."""
    errors = io.StringIO()
    try:
        status = train(settings, resume, *faults, errors=errors)
    except LabError as error:
        status = str(error)
    lines = [line for line in errors.getvalue().splitlines() if line]
    return status, [line for line in lines if not line.startswith(("train: ", "prepare "))]


def meet():
    """Join the process group, for jobs that go without Lightning."""
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
