"""The processes of a run: torchrun starts one for each device and tells each its rank by variables; their exchanges.

Also worker processes for the tasks of a preparation, which end with the process that started them.

Source: torch.distributed.run, "Environment variables"; torch.distributed.elastic.agent.server.api.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lab.core.command import EXIT_FAILURE, EXIT_STOPPED, show
from lab.core.errors import ConfigError, DataError
from lab.core.plugins import LOADED, load_plugin
from lab.core.startup import SIGNALS

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")
COPY_S = 1.0  # a Ctrl-C this soon after another signal is the same one, from the terminal and a launcher
TIMEOUT = timedelta(minutes=10)  # of a collective call: a node that is lost closes no connection
POLL_S = 0.5
COPIES = (
    "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE",
    "PMI_SIZE", "WORLD_SIZE"
)  # fmt: skip
"""By which launchers tell a process how many of them they have started; torchrun sets the last one."""


@dataclass(frozen=True)
class Launch:
    """One process among those of a run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    by_torchrun: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this process prepares the data, writes the files and prints."""
        return self.rank == 0


def read_launch() -> Launch:
    """Read the rank of this process; without torchrun it is the only one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Launch()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return Launch(**{name.lower(): int(os.environ[name]) for name in names}, by_torchrun=True)


def find_launch(devices: int, nodes: int) -> Launch:
    """Read the rank of this process, rejecting another number of processes than the config has."""
    launch = read_launch()
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        raise ConfigError("--max-restarts: probe-lab fit continues with --resume only; leave --max-restarts out")
    if (launch.world_size, launch.local_world_size) != (devices * nodes, devices):
        raise ConfigError(
            f"train.devices*train.nodes={devices}*{nodes}: torchrun started {launch.world_size} processes, "
            f"{launch.local_world_size} of them on this node; make them equal"
        )
    return launch


def follow_torchrun() -> threading.Event:
    """End this rank when its torchrun ends, or send it SIGTERM once the returned event is set.

    The first rank of a node reports it.
    """
    started = threading.Event()
    launch = read_launch()

    # Nothing tells a rank that its torchrun was killed, except that it gets another parent.
    def follow(parent: int) -> None:
        # Without the store torchrun is dead, and the parent may be the process that has adopted this one.
        lived = has_store()
        while lived and os.getppid() == parent:
            # Ranks wake at the same multiples of POLL_S, so that none of them misses the end that another one sees.
            time.sleep(POLL_S - time.time() % POLL_S)
        if launch.local_rank == 0:
            what = "saving" if started.is_set() else "nothing was trained"
            with suppress(OSError):
                show(f"torchrun of rank {launch.rank} has ended; {what}", error=True)
        if not started.is_set():
            os._exit(EXIT_FAILURE)
        os.kill(os.getpid(), signal.SIGTERM)

    if launch.by_torchrun:
        threading.Thread(target=follow, args=[os.getppid()], daemon=True).start()
    return started


def has_store() -> bool:
    """Return whether the first node's torchrun keeps the store where the ranks meet, if it is to keep one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        with suppress(OSError):  # torch reports any other than this one
            try:
                socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
            except ConnectionRefusedError:
                return False
    return True


def check_copies(fix: str) -> None:
    """Reject a command that srun, mpirun or torchrun has started several times.

    Raises: ConfigError.
    """
    for name in COPIES:
        n = os.environ.get(name, "")
        if n.isdecimal() and int(n) > 1:
            rule = f"{n} copies of this command were started, which would do the same work"
            raise ConfigError(f"{name}={n}: {rule}; {fix}, or unset {name} if their arguments differ")


def needs_torchrun(devices: int, nodes: int) -> bool:
    """Return whether this process has to start the ranks of a run.

    Raises: ConfigError for several nodes, which it cannot reach, and for copies of this process without torchrun.
    """
    if read_launch().by_torchrun:
        return False
    if nodes > 1:
        raise ConfigError(f"train.nodes={nodes}: several nodes need torchrun on each; see docs/training.md")
    check_copies("start torchrun once on each node, as configs/slurm_tiny.sh does")
    return devices > 1


def start_ranks(words: Sequence[str], devices: int, again: str) -> int:
    """Run lab.fit with these arguments in several processes of this machine, by torchrun; return the exit status.

    If a rank fails, torchrun ends the others within 30 s. After a signal the status is 75 however the ranks end, as
    torchrun does not tell.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # The ranks print every error themselves, in one line.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")  # seconds, in which ranks save after a signal
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # lab.fit sets the threads of each rank
    passed_on = ",".join(number.name for number in (*SIGNALS, signal.SIGQUIT))
    options = [f"--nproc-per-node={devices}", f"--signals-to-handle={passed_on}", "--local-addr=127.0.0.1"]
    try:
        run.run(run.parse_args(["--standalone", *options, "-m", "lab.fit", *words]))
    except SignalException:
        return EXIT_STOPPED
    except ChildFailedError as error:
        rank, cause = min(error.failures.items(), key=lambda item: order_by_cause(item[1].exitcode))
        if cause.exitcode >= 0:
            return int(cause.exitcode)
        killed = f"rank {rank} (process {cause.pid}) was killed by {signal.Signals(-cause.exitcode).name}"
        show(f"\n{killed}; all ranks end; continue with: {again}", error=True)
        return EXIT_FAILURE
    return 0


def order_by_cause(exitcode: int) -> int:
    """Order how ranks ended, causes first: a kill, a rank that failed or lost a killed one, torchrun's SIGTERM."""
    return 2 if exitcode == -signal.SIGTERM else int(exitcode >= 0)


def cores() -> int:
    """Count the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS limits no process to some cores


def set_threads(threads: int | None, launch: Launch = Launch()) -> int:
    """Set the number of CPU threads of this process, by default its part of the cores, and return it."""
    import torch

    chosen = threads or max(1, cores() // launch.local_world_size)
    torch.set_num_threads(chosen)
    if launch.world_size > 1:
        os.environ["OMP_NUM_THREADS"] = str(chosen)  # otherwise Lightning sets its own number
    return chosen


class WorkFailed(Exception):
    """The work failed on some rank, as all ranks know."""


class OutOfStep(RuntimeError):
    """This rank failed where the others wait for it in a collective call."""


def exchange(value: Any, reason: str | None = None) -> list[Any]:
    """Collect a value of every rank, in order; WorkFailed on all where one has a reason. A collective call."""
    from torch import distributed

    parts = [(value, reason)]
    if distributed.is_initialized():
        parts = parts * distributed.get_world_size()
        distributed.all_gather_object(parts, (value, reason))
    reasons = [f"rank {rank}: {reason}" for rank, (_, reason) in enumerate(parts) if reason]
    if reasons:
        raise WorkFailed(reasons[0])
    return [value for value, _ in parts]


def sum_over_ranks(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add up the arrays of every rank, of one shape; a collective call."""
    import torch
    from torch import distributed

    total = torch.from_numpy(values.copy())
    if distributed.is_initialized():
        if distributed.get_backend() == "nccl":
            total = total.to("cuda")  # NCCL exchanges no memory of the host
        distributed.all_reduce(total)
    return total.cpu().numpy()


def in_processes(run: Callable[[T], None], todo: Sequence[T], workers: int, on_done: Callable[[], object]) -> None:
    """Run tasks in this process or in worker processes; `on_done` is called after each."""
    # Not a generator: an abandoned one would wait for the workers in the thread that collects it as garbage.
    if workers <= 1 or len(todo) <= 1:
        for _ in map(run, todo):
            on_done()
        return
    context = multiprocessing.get_context("spawn")
    plugins = [Path(str(module.__file__)) for module in LOADED.values()]
    with ProcessPoolExecutor(min(workers, len(todo)), context, begin_worker, (plugins,)) as pool:
        try:
            for _ in pool.map(run, todo):
                on_done()
        except BrokenProcessPool as error:
            rule = f"a worker was killed, perhaps for its memory; run the same command again with fewer than {workers}"
            raise DataError(f"--workers={workers}: {rule}") from error


def begin_worker(plugins: Sequence[Path]) -> None:
    """End a worker process with its parent, load its plugins, and limit its tokenizers library to one thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"

    def end_after() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_after, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library has no other setting
    for path in plugins:
        load_plugin(path)  # before any task is read, which may contain objects of its classes
