"""Executors: where the tasks of preparation run. Each is given the function that runs a task, and the tasks.

    local   processes of this machine
    ray     tasks of Ray's cluster: the one that RAY_ADDRESS names, or one on this machine
    slurm   a job array, each job of which runs its share of the tasks, as lab.prepare --task I/N does

A task has one owner and a shard when it is done, so that executors need to keep no record.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from lab.errors import DataError, MissingPackage

Run = Callable[[Any], bool]
Executor = Callable[[Run, Sequence[Any]], Iterator[bool]]
EXECUTORS = ("local", "slurm", "ray")


def local(workers: int) -> Executor:
    """Run tasks in this process or in worker processes, and yield what they return as they finish."""

    def execute(run: Run, todo: Sequence[Any]) -> Iterator[bool]:
        if workers <= 1 or len(todo) <= 1:
            yield from map(run, todo)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=begin_worker) as pool:
            futures = [pool.submit(run, task) for task in todo]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    return execute


def begin_worker() -> None:
    """End a worker process with its parent, and limit its tokenizers library to one thread; it has no other setting."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"
    threading.Thread(target=end_after, args=(parent,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def end_after(parent: multiprocessing.process.BaseProcess) -> None:
    """Wait for the end of the parent, however it ends, and end this process."""
    parent.join()
    os._exit(1)


def on_ray() -> Executor:
    """Run each task on one core of Ray's cluster, whose nodes have this environment and the same folders.

    Raises: MissingPackage.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackage("ray", "--executor=ray", "ray") from error

    def execute(run: Run, todo: Sequence[Any]) -> Iterator[bool]:
        place = os.getcwd()

        def run_there(task: Any) -> bool:
            os.chdir(place)
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            return run(task)

        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        remote = ray.remote(num_cpus=1)(run_there)
        waiting = [remote.remote(task) for task in todo]
        while waiting:
            done, waiting = ray.wait(waiting)
            try:
                yield ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error

    return execute


def on_slurm(words: Sequence[str], jobs: int, workers: int) -> Executor:
    """Submit the tasks as an array of jobs, and wait for it; `words` are the config and its settings.

    Partition, time limit and the like are read by sbatch from its own variables, such as SBATCH_PARTITION.

    Raises: DataError where jobs fail or cannot be submitted.
    """

    def execute(run: Run, todo: Sequence[Any]) -> Iterator[bool]:
        if not todo:
            return
        n = min(jobs, len(todo))
        job = f"exec {shlex.join([sys.executable, '-m', 'lab.prepare', *words])}"
        options = ("--wait", "--requeue", "--open-mode=append", "--job-name=probe-lab-prepare")
        array = (f"--array=0-{n - 1}", f"--cpus-per-task={workers}")
        share = f"--wrap={job} --workers={workers} --task=$SLURM_ARRAY_TASK_ID/{n}"
        try:
            status = subprocess.run(["sbatch", *options, *array, share], check=False).returncode
        except OSError as error:
            raise DataError(f"--executor=slurm: sbatch cannot be run ({error.strerror}); use local or ray") from error
        if status:
            remedy = "see the files slurm-*.out, then run the same command, which runs what is left"
            raise DataError(f"--executor=slurm: jobs failed (sbatch has returned {status}); {remedy}")
        yield from [True] * len(todo)

    return execute
