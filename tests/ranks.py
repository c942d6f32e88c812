"""Processes that stay, for tests of several ranks: torch is loaded and the ranks meet once, then any number of jobs run."""

import multiprocessing
import os
import queue
import socket
import time
import traceback

LIMIT_S = 240  # for one job on a busy machine
POLL_S = 1.0


def serve(rank, world, port, jobs, answers):
    """Run jobs as one rank; the variables are those that Lightning's own launcher sets."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "OMP_NUM_THREADS": "1"}
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_WAIT_POLICY": "PASSIVE"}
    while True:
        job, arguments = jobs.get()
        try:
            answers.put((rank, job(*arguments), None))
        except BaseException:
            answers.put((rank, None, traceback.format_exc()))


class Ranks:
    """So many processes on this machine; `run` gives one job to all and returns their results by rank."""

    def __init__(self, world):
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.jobs = [context.Queue() for _ in range(world)]
        self.answers = context.Queue()
        self.processes = [
            context.Process(target=serve, args=(rank, world, port, self.jobs[rank], self.answers), daemon=True)
            for rank in range(world)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()

    def run(self, job, *arguments):
        for jobs in self.jobs:
            jobs.put((job, arguments))
        results, deadline = {}, time.monotonic() + LIMIT_S
        while len(results) < len(self.processes):
            try:
                rank, result, fault = self.answers.get(timeout=POLL_S)
            except queue.Empty:
                assert time.monotonic() < deadline, f"ranks {sorted(results)} of {len(self.processes)} answered"
                assert all(process.is_alive() for process in self.processes), "a rank died"
                continue
            assert fault is None, f"rank {rank}: {fault}"
            results[rank] = result
        return [results[rank] for rank in sorted(results)]
