"""Where the ranks of a run meet before they train, the store that torchrun keeps, and what they must have in common.

A rank writes what the others need under a key of its own, and waits for theirs. A rank that fails writes the reason, so
that no other waits for it: all end with its line. A connection to the rank before it tells each rank when that one has
ended. Once all ranks train, their collective calls and torchrun take over.
Before data loads, each rank compares its settings and code with those of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from lab.config import Experiment
from lab.core import files, locks
from lab.core.command import EXIT_FAILURE, EXIT_STOPPED, show
from lab.core.errors import ConfigError, PeerError, abbreviate, first_line
from lab.core.launch import POLL_S, TIMEOUT, Launch, exchange, has_store
from lab.core.plugins import LOADED
from lab.core.startup import SIGNALS
from lab.core.yaml import flatten
from lab.train.environment import ROOT, versions

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ERROR, ENDED, STARTED = "error", "ended", "started"  # keys of the store, next to the names of exchanges
LOOK_S = 0.05
GRACE_S = 5.0  # that a rank which has lost another one waits for torchrun, or for an error of its own, to end it
CONNECTIONS: list[Any] = []  # a group of all ranks and a thread, from check_network until they train
ENDING = threading.Lock()  # held by the thread that ends this rank
STOPPED = "stopped"  # in place of an error, of a rank that a signal ends
NETWORK = timedelta(seconds=30)  # that gloo's first connections may take
NETWORKS = "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on every node to the network between them (ip -brief address)"
SHARED_S = 60.0  # NFS may take this long to show a new name to other nodes


def gather(name: str, value: str, launch: Launch) -> list[str]:
    """Collect a text of every rank, in order, before there is a process group as well; a collective call.

    `name` distinguishes it from other calls, which the store keeps.

    Raises: PeerError where a rank has failed, does not answer, or cannot be reached.
    """
    from torch import distributed

    if launch.world_size == 1:
        return [value]
    if distributed.is_initialized():
        return exchange(value)
    keys = keys_of(name, launch)
    until = time.monotonic() + TIMEOUT.total_seconds()
    with reaching(launch):
        store = open_store(launch)
        store.set(keys[launch.rank], value)
        # A loop in place of store.wait(keys), which would not notice that another rank has failed.
        while not store.check(keys):
            raise_error(store)
            # The first rank is not late: it may prepare data for hours, and the store ends with it.
            late = [rank for rank in range(1, launch.world_size) if not store.check([keys[rank]])]
            if late and time.monotonic() > until:
                raise PeerError(f"{name_ranks(*late)}: no answer for {TIMEOUT}; see the output of their nodes")
            time.sleep(LOOK_S)
        return [text.decode() for text in store.multi_get(keys)]


def keys_of(name: str, launch: Launch) -> list[str]:
    return [f"{name}/{rank}" for rank in range(launch.world_size)]


@contextmanager
def reaching(launch: Launch) -> Iterator[None]:
    """Report in one line that the store cannot be reached, or has ended.

    Raises: PeerError.
    """
    from torch.distributed import DistError

    try:
        yield
    except DistError as error:
        # If the launcher of this rank has ended, too, or all were stopped, another thread ends it meanwhile.
        time.sleep(GRACE_S)
        raise PeerError(
            f"MASTER_ADDR={os.environ.get('MASTER_ADDR')}: {name_ranks(launch.rank)} on {platform.node()} has lost the "
            f"first rank, or cannot reach it ({first_line(error)}); see the output of that node, or {NETWORKS}"
        ) from error


@cache
def open_store(launch: Launch) -> Store:
    """Connect to torchrun's store, which is there before any rank is, or without its agent to the first rank's."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", launch.rank, launch.world_size, timeout=timedelta(minutes=2)))
    return store


def tell(error: str, launch: Launch) -> None:
    """Tell the other ranks why this one ends, and wait until they know, but not once all of them train."""
    if launch.world_size == 1 or not has_store():
        return
    from torch.distributed import DistError

    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # torchrun may end this rank, which is ending
    with suppress(DistError):
        store = open_store(launch)
        # Only the first error is kept: the ranks that end because of it must not replace it.
        store.compare_set(ERROR, "", f"{name_ranks(launch.rank)} on {platform.node()}: {error}")
        if store.check([STARTED]):
            return
    end_together(launch)


def speaks(launch: Launch) -> bool:
    """Return whether this rank prints an error: the first of its node that has one."""
    if launch.world_size > 1 and has_store():
        with suppress(RuntimeError):  # the store has ended
            first = open_store(launch).compare_set(f"printed/{launch.rank - launch.local_rank}", "", f"{launch.rank}")
            return int(first) == launch.rank
    return launch.local_rank == 0


def end_rank(message: str, status: int, launch: Launch) -> NoReturn:
    """End this rank before it trains, with the error that another one has told, if there is one, or stop all ranks.

    From any thread: the main thread may be waiting for other ranks in C++.
    """
    ENDING.acquire()  # a second thread waits here until the first one has ended the process
    is_stop = status == EXIT_STOPPED
    with suppress(RuntimeError):
        if CONNECTIONS and not is_stop and (store := open_store(launch)).check([ERROR]):
            message = store.get(ERROR).decode()
    if launch.local_rank == 0:
        show(message, error=True)
    if is_stop and launch.world_size > 1:
        time.sleep(POLL_S)  # in which the main thread connects, or tells ranks that it is not connected to: raise_error
        with suppress(RuntimeError):  # the next rank has ended
            if CONNECTIONS:
                send_to_next(1.0, launch)
                # The store may end with the first rank. By now the stop has come round to it.
                CONNECTIONS[1].join(GRACE_S * launch.is_first)
        time.sleep(POLL_S)  # in which the next rank takes the stop, before it sees this one end
    os._exit(status)


def await_end(seconds: float = 0.0) -> None:
    """Wait if another thread ends this rank, or may do so within some seconds.

    Else its main thread might print an error that only the end of other ranks has caused.
    """
    time.sleep(seconds)
    with ENDING:
        pass


def send_to_next(value: float, launch: Launch) -> None:
    """Tell the next rank to go on without this one (0), or to stop (1)."""
    import torch

    sending = CONNECTIONS[0].send([torch.tensor([value])], (launch.rank + 1) % launch.world_size, 0)
    sending.wait(timedelta(seconds=GRACE_S))


def follow_rank(launch: Launch) -> None:
    """End this rank if the one before it ends or stops, until `release_rank` of that one."""
    import torch

    before = (launch.rank - 1) % launch.world_size
    stops = torch.zeros(1)
    try:
        CONNECTIONS[0].recv([stops], before, 0).wait(timedelta(days=1000))
        if stops.item():
            os.kill(os.getpid(), signal.SIGTERM)
    except RuntimeError:
        time.sleep(GRACE_S)
        if CONNECTIONS:
            end_rank(f"{name_ranks(before)} has ended before the training; see its output", EXIT_FAILURE, launch)


def release_rank(launch: Launch) -> None:
    """Let the next rank go on without this one, and wait until the one before does so."""
    if CONNECTIONS:
        with suppress(RuntimeError):  # it has ended
            send_to_next(0.0, launch)
        thread = CONNECTIONS[1]
        CONNECTIONS.clear()
        # If that thread returned from C++ while the process exits, Python would abort the process.
        thread.join(GRACE_S)


def start_together(launch: Launch, is_asked: Callable[[], bool]) -> bool:
    """Wait until all ranks are about to train; return False on all of them if one was asked to stop before.

    A collective call. From here on, a rank that fails is noticed by the collective calls of the others.

    Raises: PeerError.
    """
    if launch.world_size == 1:
        return True
    if ENDING.locked():
        return False
    keys = keys_of("starting", launch)
    try:
        with reaching(launch):
            store = open_store(launch)
            store.set(keys[launch.rank], "")
            while not (is_asked() or store.check(keys)):
                raise_error(store)
                time.sleep(LOOK_S)
            # The first rank that decides does so for all: else one might train, and wait for one that has ended.
            decision = store.compare_set(STARTED, "", "yes" if store.check(keys) else "no") == b"yes"
    except PeerError:
        if not is_asked():
            raise
        return False  # the store has ended by the same signal
    if decision:
        release_rank(launch)
    return bool(decision)


def end_together(launch: Launch) -> None:
    """Wait, before the end of a run that trains nothing, until no rank reads the store, which may end with the first.

    A rank that fails waits for the others, too, but not for long.
    """
    if launch.world_size == 1 or not has_store():
        return
    from torch.distributed import DistError

    until = time.monotonic() + 20.0
    with suppress(DistError):
        store = open_store(launch)
        store.set(f"{ENDED}/{launch.rank}", "")
        while not store.check(keys_of(ENDED, launch)) and time.monotonic() < until:
            time.sleep(LOOK_S)
        release_rank(launch)
        if launch.is_first:
            time.sleep(POLL_S)  # others may still look


def check_network(launch: Launch) -> None:
    """Reject hosts whose gloo cannot connect all ranks, which training and saving need. A collective call.

    Gloo listens at the address of the host's own name, which is 127.0.1.1 on many, unless a variable names the network.

    Raises: ConfigError, PeerError.
    """
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore

    if launch.world_size == 1 or distributed.is_initialized():
        return
    results: list[Any] = []  # a group, or the error

    def connect(store: Store) -> None:
        try:
            results.append(distributed.ProcessGroupGloo(store, launch.rank, launch.world_size, NETWORK))
        except RuntimeError as error:
            results.append(error)

    with reaching(launch):
        store = open_store(launch)
        # A rank that listens at an address which others do not reach waits in gloo, and would not see that they fail.
        thread = threading.Thread(target=connect, args=[PrefixStore("network", store)], daemon=True)
        thread.start()
        while thread.is_alive():
            raise_error(store)
            thread.join(LOOK_S)
    if isinstance(results[0], RuntimeError):
        with reaching(launch):
            raise_error(store)  # none can connect once one has ended
        await_end(POLL_S)
        raise ConfigError(
            f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}: {name_ranks(launch.rank)} on "
            f"{platform.node()} cannot connect to the others ({first_line(results[0])}); {NETWORKS}"
        )
    CONNECTIONS.extend([*results, threading.Thread(target=follow_rank, args=[launch], daemon=True)])
    CONNECTIONS[1].start()
    gather("network", "", launch)


def raise_error(store: Store) -> None:
    """Raise the error that a rank has told, end this rank if another one was stopped, or tell that this one was."""
    if ENDING.locked() and not CONNECTIONS:
        store.compare_set(ERROR, "", STOPPED)
    elif store.check([ERROR]):
        error = store.get(ERROR).decode()
        if error != STOPPED:
            raise PeerError(error)
        os.kill(os.getpid(), signal.SIGTERM)


def name_ranks(*ranks: int) -> str:
    """Name ranks in a line.

    Example:
        >>> name_ranks(1), name_ranks(2, 3)
        ('rank 1', 'rank 2, 3')
    """
    return f"rank {abbreviate(', '.join(map(str, ranks)))}"


def check_ranks(experiment: Experiment, options: Mapping[str, object], launch: Launch) -> None:
    """Reject ranks with different settings, options, plugins, packages or code, or without a connection.

    A collective call.

    Raises: ConfigError, PeerError.
    """
    record = {}  # what must be the same on all ranks: settings first, files of code last
    of_a_machine = ("train.threads", "train.devices", "train.accelerator", "plugins")
    for key, value in flatten(experiment.to_dict()).items():
        if key not in of_a_machine and not key.endswith((".path", ".folder", ".haystack", ".selection")):
            record[key] = json.dumps(value, default=str)
    record |= {f"--{key}": str(value) for key, value in options.items() if isinstance(value, bool)}
    record["plugins"] = ", ".join(sorted(LOADED))
    record |= versions()
    # The files themselves, not the commit: a wheel has none, and a clone may have changes that are not committed.
    for path in sorted((ROOT / "lab").rglob("*.py")):
        record[path.relative_to(ROOT).as_posix()] = digest(path.read_bytes())
    compare_ranks("settings", record, launch)
    check_network(launch)


def digest(data: bytes) -> str:
    return f"SHA-256 {hashlib.sha256(data).hexdigest()[: files.HASH_DIGITS]}"


def compare_ranks(name: str, own: Mapping[str, str], launch: Launch, shown: Mapping[str, str] | None = None) -> None:
    """Reject ranks whose entries differ from the first rank's; the line names the first entry that does.

    The line has the texts of `shown` in place of the entries. A rank without entries is not compared. A collective
    call.

    Raises: ConfigError.
    """
    # All ranks report the same line, hence each needs the entries of all.
    ranks = [*map(json.loads, gather(name, json.dumps([own, shown or own, platform.node()]), launch))]
    first, texts, node = ranks[0]
    # Of several entries the one that is listed first is named: settings come before the code that may cause the others.
    for key in dict.fromkeys(chain(first, *(sorted(entries) for entries, *_ in ranks))):
        differing = [rank for rank, (entries, *_) in enumerate(ranks) if entries and entries.get(key) != first.get(key)]
        if differing:
            _, values, other = ranks[differing[0]]
            theirs, expected = (abbreviate(entries.get(key, "nothing")) for entries in (values, texts))
            raise ConfigError(
                f"{key}={theirs}: {name_ranks(*differing)} on {other} must have what rank 0 on {node} has, {expected}; "
                "start all ranks with the same settings, code, packages, compilers and shards"
            )


def check_shared(experiment: Experiment, launch: Launch) -> None:
    """Reject a run folder that is not the first rank's own on all ranks, or that some cannot write to.

    The first rank, which owns the folder, makes a file of a random name next to the lock. A collective call.

    Raises: ConfigError, PeerError.
    """
    if launch.world_size == 1:
        return
    path = experiment.run.path
    own = files.name_temporary(path / locks.LOCK_NAME)
    try:
        if launch.is_first:
            own.touch()
        name = gather("folder", own.name, launch)[0]
        # A file system between nodes may show a new name late: a rank that does not see it at once looks again.
        until = time.monotonic() + SHARED_S
        while not os.path.exists(path / name) and time.monotonic() < until:
            time.sleep(locks.POLL_S)
        is_shared = os.path.exists(path / name) and os.access(path, os.W_OK)
        hosts = gather("shared", "" if is_shared else platform.node(), launch)
    finally:
        if launch.is_first:
            own.unlink(missing_ok=True)
    if ranks := [rank for rank, host in enumerate(hosts) if host]:
        raise ConfigError(
            f"run.folder={experiment.run.folder}: {path} of {name_ranks(*ranks)} on {hosts[ranks[0]]} is not rank 0's "
            "folder, or cannot be written to; name a folder that all nodes share"
        )
