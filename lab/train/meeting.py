"""Where the ranks of a run meet before they train: the store that torchrun keeps for them.

A rank writes what the others need under a key of its own, and waits for theirs. A rank that fails writes the reason, so
that no other waits for it: all end with its line. Once all ranks train, their collective calls and torchrun take over.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

from lab.core.errors import ConfigError, PeerError, abbreviate, first_line
from lab.core.launch import POLL_S, TIMEOUT, Launch, exchange, has_store

FAULT, ENDED = "fault", "ended"  # keys of the store, next to the names of exchanges
LAST = "started"  # name of the last exchange before the training
LOOK_S = 0.05
CONNECT = timedelta(minutes=2)  # torchrun keeps its store before it starts any rank
TOLD_S = 60.0  # that a rank which fails waits until all others know
NETWORK = timedelta(seconds=30)  # that gloo's first connections may take
NETWORKS = "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on every node to the network between them (ip -brief address)"


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
            raise_fault(store)
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
        # If the launcher of this rank has ended, too, follow_torchrun ends the rank meanwhile with a better line.
        time.sleep(2 * POLL_S)
        rule = f"{name_ranks(launch.rank)} on {platform.node()} has lost the first rank, or cannot reach it"
        field = f"MASTER_ADDR={os.environ.get('MASTER_ADDR')}"
        raise PeerError(f"{field}: {rule} ({first_line(error)}); see the output of that node, or {NETWORKS}") from error


@cache
def open_store(launch: Launch) -> Any:
    """Connect to torchrun's store, or without its agent to the first rank's."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", launch.rank, launch.world_size, timeout=CONNECT))
    return store


def tell(fault: str, launch: Launch) -> None:
    """Tell the ranks that wait for this one why it ends, and wait until they know; nothing once all of them train."""
    if launch.world_size == 1 or not has_store(os.environ):
        return
    from torch.distributed import DistError

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun repeats a Ctrl-C
    with suppress(DistError):
        store = open_store(launch)
        if store.check(keys_of(LAST, launch)):
            return
        # Only the first fault is kept: the ranks that end because of it must not replace it.
        store.compare_set(FAULT, "", f"{name_ranks(launch.rank)} on {platform.node()}: {fault}")
    leave(launch)


def end_together(launch: Launch) -> None:
    """Wait, before the end of a run that trains nothing, until all ranks have read what they gather."""
    from torch import distributed

    # A process group has exchanges of its own, which need no store.
    if launch.world_size > 1 and not distributed.is_initialized() and has_store(os.environ):
        leave(launch)


def leave(launch: Launch) -> None:
    """Wait until no rank reads the store any more, which may end with the first one."""
    from torch.distributed import DistError

    until = time.monotonic() + TOLD_S
    with suppress(DistError):
        store = open_store(launch)
        store.set(f"{ENDED}/{launch.rank}", "")
        while not store.check(keys_of(ENDED, launch)) and time.monotonic() < until:
            time.sleep(LOOK_S)
        if launch.is_first:
            time.sleep(POLL_S)  # the store ends with this process or its launcher, while others may still look


def check_network(launch: Launch) -> None:
    """Reject hosts whose gloo cannot connect all ranks, which training and saving need. A collective call.

    Gloo listens at the address of the host's own name, which is 127.0.1.1 on many, unless a variable names the network.

    Raises: ConfigError, PeerError.
    """
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore

    if launch.world_size == 1 or distributed.is_initialized():
        return
    kept: list[Any] = []  # until all ranks are connected
    fault = ""

    def connect(store: Any) -> None:
        nonlocal fault
        try:
            kept.append(distributed.ProcessGroupGloo(store, launch.rank, launch.world_size, NETWORK))
        except RuntimeError as error:
            fault = first_line(error)

    with reaching(launch):
        store = open_store(launch)
        # A rank that listens at an address which others do not reach waits in gloo, and would not see that they fail.
        thread = threading.Thread(target=connect, args=[PrefixStore("network", store)], daemon=True)
        thread.start()
        while thread.is_alive():
            raise_fault(store)
            thread.join(LOOK_S)
    if fault:
        rule = f"{name_ranks(launch.rank)} on {platform.node()} cannot connect to the others ({fault})"
        raise ConfigError(f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}: {rule}; {NETWORKS}")
    gather("network", "", launch)


def raise_fault(store: Any) -> None:
    if store.check([FAULT]):
        raise PeerError(store.get(FAULT).decode())


def name_ranks(*ranks: int) -> str:
    """Name ranks in a line.

    Example:
        >>> name_ranks(1), name_ranks(2, 3)
        ('rank 1', 'rank 2, 3')
    """
    return f"rank {abbreviate(', '.join(map(str, ranks)))}"
